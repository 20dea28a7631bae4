"""Draft blocks cut from a known answer: what the drafter will see, and what it should say.

A block's root sits at an anchor position of the answer; everything before it is context, and the
answer goes on with the tokens the slots should propose. Many blocks of one sequence run in one
pass. They are laid out in groups: the blocks of a group share one row axis under a mask, which
keeps attention products large without the waste of masking every block against every other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dartree_core.draft.spec import DraftSpec
from dartree_core.train.corpus import Sample

GROUP = 8
"""Blocks that share a row axis; attention is fastest at 4 to 16 on CPUs, and memory small."""


@dataclass(slots=True)
class Blocks:
    """Blocks of one sequence. G groups of g blocks, A = G * g, each of `b` rows and K slots.

    Attributes:
        anchors: int64 `[A]`, positions of the roots.
        tokens: int64 `[A, K + 1]`, the root and the tokens its slots should propose.
        valid: bool `[A, K]`, slots the sequence reaches; False throughout for padding.
        positions: int64 `[G, g * b]`, absolute positions of the rows.
        masks: Per draft layer bool `[G, g * b, t + g * b]`, what a row may look at.
    """

    anchors: Tensor
    tokens: Tensor
    valid: Tensor
    positions: Tensor
    masks: list[Tensor | None]

    def to(self, device: torch.device) -> Blocks:
        """The same blocks on `device`."""
        return Blocks(
            self.anchors.to(device),
            self.tokens.to(device),
            self.valid.to(device),
            self.positions.to(device),
            [None if m is None else m.to(device) for m in self.masks],
        )


def draw_anchors(sample: Sample, count: int, generator: torch.Generator) -> Tensor:
    """Up to `count` distinct anchors of a sample, ascending.

    An answer's first token comes from the target alone, so it can be a root; its last token
    cannot, since nothing follows.
    """
    first, last = sample.answer, len(sample.tokens) - 2
    available = last - first + 1
    order = torch.randperm(available, generator=generator)[:count]
    return (order + first).sort().values


def make_blocks(sample: Sample, anchors: Tensor, spec: DraftSpec) -> Blocks:
    """Lay out the blocks at `anchors`, padded to whole groups."""
    rows, slots = spec.block_size, spec.num_slots()
    length = len(sample.tokens)
    missing = -len(anchors) % GROUP
    real = torch.arange(len(anchors) + missing) < len(anchors)
    anchors = torch.cat((anchors, anchors[-1:].expand(missing)))
    at = anchors[:, None] + torch.arange(slots + 1)
    tokens = torch.from_numpy(sample.tokens)[at.clamp(max=length - 1)]
    valid = (at[:, 1:] < length) & real[:, None]
    positions = (anchors[:, None] + torch.arange(rows)).view(-1, GROUP * rows)
    return Blocks(anchors, tokens, valid, positions, _masks(anchors, positions, length, spec))


def _masks(anchors: Tensor, positions: Tensor, length: int, spec: DraftSpec) -> list[Tensor | None]:
    """A row sees the context before its own root, and its own block in both directions."""
    rows = spec.block_size
    roots = anchors.view(-1, GROUP).repeat_interleave(rows, dim=1)
    keys = torch.arange(length)
    context = keys < roots[..., None]
    member = torch.arange(GROUP).repeat_interleave(rows)
    own = (member[:, None] == member).expand(len(roots), -1, -1)
    full = torch.cat((context, own), dim=-1)
    masks: list[Tensor | None] = []
    for window in spec.windows:
        if window is None:
            masks.append(full)
        else:
            key_positions = torch.cat((keys.expand(len(roots), -1), positions), dim=-1)
            near = (positions[..., None] - key_positions[:, None]).abs() < window
            masks.append(full & near)
    return masks

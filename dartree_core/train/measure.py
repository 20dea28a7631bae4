"""Held-out accuracy and acceptance of a drafter by teacher forcing, without decoding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dartree_core.train.blocks import Blocks, draw_anchors, make_blocks
from dartree_core.train.features import FeatureSource
from dartree_core.train.model import Tables, TrainableDrafter
from dartree_core.train.precision import autocast
from dartree_core.train.stream import keyed_generator

ANCHORS = 32


@dataclass(frozen=True, slots=True)
class Accuracy:
    """What a drafter gets right on known answers.

    Attributes:
        blocks: Blocks measured.
        base, corrected: Per slot the share of argmaxes that are the answer's token, given that
            the path so far is the answer's.
        dflash, domino: Tokens a round of either chain emits, bonus included, averaged over random
            positions of the answers. Decoding stops more often before hard tokens, so its own
            mean differs somewhat (`forced` has that one).
    """

    blocks: int
    base: tuple[float, ...]
    corrected: tuple[float, ...]
    dflash: float
    domino: float

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {
            "blocks": self.blocks,
            "base": [round(x, 4) for x in self.base],
            "corrected": [round(x, 4) for x in self.corrected],
            "dflash_acceptance_length": round(self.dflash, 4),
            "domino_acceptance_length": round(self.domino, 4),
        }


def chain_length(counts: Sequence[Sequence[float]]) -> float:
    """Tokens a corrected chain would emit per round if slots were right independently.

    Args:
        counts: `[3][K]` slots scored, base right, corrected right.
    """
    length = reached = 1.0
    for scored, right in zip(counts[0], counts[2], strict=True):
        reached *= right / scored if scored else 0.0
        length += reached
    return length


@torch.no_grad()
def measure(
    model: TrainableDrafter,
    tables: Tables,
    source: FeatureSource,
    indices: Iterable[int],
    dtype: torch.dtype,
) -> Accuracy:
    """Score up to `ANCHORS` blocks of each sample; the same ones whenever it is called."""
    slots = model.spec.num_slots()
    device = source.target.device
    right = torch.zeros(2, slots, device=device)
    seen = torch.zeros(slots, device=device)
    accepted = torch.zeros(2, device=device)
    blocks_seen = 0
    for index in indices:
        sample = source.corpus.samples[index]
        anchors = draw_anchors(sample, ANCHORS, keyed_generator(0, 3, index))
        blocks = make_blocks(sample, anchors, model.spec).to(device)
        with autocast(device, dtype):
            hits = _hits(model, tables, source[index].context, blocks)
        valid = blocks.valid
        whole = valid.all(dim=1)
        right += (hits & valid).sum(dim=1)
        seen += valid.sum(dim=0)
        # Rounds that the answer's end cuts short would look worse than they are.
        accepted += hits[:, whole].long().cumprod(dim=2).sum(dim=(1, 2))
        blocks_seen += int(whole.sum())
    base, corrected = (right / seen.clamp_min(1)).tolist()
    dflash, domino = (1 + accepted / max(1, blocks_seen)).tolist()
    return Accuracy(blocks_seen, tuple(base), tuple(corrected), dflash, domino)


def _hits(model: TrainableDrafter, tables: Tables, context: Tensor, blocks: Blocks) -> Tensor:
    """bool `[2, A, K]`: base and corrected argmax equal the answer's token."""
    hidden = model.hidden(context, blocks, tables)
    a, k, h = hidden.shape
    base = tables.logits(hidden.reshape(a * k, h))
    states = model.states(blocks, tables).reshape(a * k, -1)
    slot = torch.arange(k, device=hidden.device).repeat(a)
    corrected = model.corrected(base, hidden.reshape(a * k, h), states, slot)
    chosen = torch.stack((base.argmax(-1), corrected.argmax(-1))).view(2, a, k)
    hits: Tensor = tables.vocabulary.to_target(chosen) == blocks.tokens[None, :, 1:]
    return hits

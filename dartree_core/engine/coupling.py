"""Coupled drafting: let the drafter see the noise the target will choose with.

When sampling, the target's choice at a position is `argmax(log p / T + g)` with noise g that is
known before anything is drafted (`noise`). So the drafter ranks by `a * log q / T + g` with the
same g: where q is close to p, both pick the same token, at any temperature. This is the shared
randomness of arXiv 2504.15475, on trees. Nothing about exactness changes: the draft only
proposes, and every emitted token is still the target's own choice.

A drafter is often less sure than its target: then noise drowns what it knows. The sharpness a
makes up for that. It, and whether to couple at all, is chosen by which ranking has been putting
the target's choices nearest to the top.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dartree_core.config import SamplingConfig
from dartree_core.draft.drafter import BlockDraft
from dartree_core.engine.noise import gumbel

_SHARPNESS = (1.0, 1.4, 2.0, 2.8, 4.0)
_UNCOUPLED = len(_SHARPNESS)
_MARGIN = 0.02
"""How much better a coupled ranking must have done before it is used."""
_FADE = 0.98
"""How fast the comparison forgets; a few dozen choices weigh most."""


class Coupling:
    """One per decoder: what it learns about its drafter serves all turns."""

    def __init__(self) -> None:
        self._scores = [0.0] * (len(_SHARPNESS) + 1)
        self._raw: BlockDraft | None = None
        self._noise: Tensor | None = None
        self._scale = 1.0

    @property
    def sharpness(self) -> float | None:
        """The a in use; None while the papers' uncoupled ranking predicts better."""
        best = max(range(_UNCOUPLED), key=self._scores.__getitem__)
        wins = self._scores[best] > self._scores[_UNCOUPLED] + _MARGIN
        return _SHARPNESS[best] if wins else None

    def apply(self, block: BlockDraft, sampling: SamplingConfig, start: int) -> BlockDraft:
        """The block as builders should rank it.

        Args:
            block: Marginals of the slots after the root.
            sampling: Temperature (above 0) and seed of the turn.
            start: Absolute position of the root; slot i stands at `start + 1 + i`.
        """
        vocabulary = block.vocabulary
        rows = torch.arange(block.base_logits.shape[1], device=block.base_logits.device)
        tokens = vocabulary.to_target(rows)
        self._raw = block
        self._scale = 1.0 / sampling.temperature
        self._noise = torch.stack(
            [gumbel(sampling.seed, start + 1 + slot, tokens) for slot in range(block.num_slots)]
        )
        sharpness = self.sharpness
        if sharpness is None:
            return block
        scale = self._scale * sharpness
        logits = torch.add(self._noise, block.base_logits, alpha=scale)
        return BlockDraft(block.hidden, logits, vocabulary, scale)

    def learn(self, choices: Sequence[int]) -> None:
        """The target's choices after the root, slot by slot, as far as they are known.

        Each ranking earns 1 / log2(1 + rank) for them, since a tree reaches a few ranks deep;
        tokens the drafter cannot propose say nothing.
        """
        if self._raw is None or self._noise is None:
            return
        logits, noise = self._raw.base_logits, self._noise
        known = torch.tensor(choices[: len(logits)], device=logits.device)
        rows = self._raw.vocabulary.to_rows(known)
        slots = (rows >= 0).nonzero()[:, 0]
        self._raw = None
        if not len(slots):
            return
        rows, logits, noise = rows[slots], logits[slots], noise[slots]
        for i, sharpness in enumerate(_SHARPNESS):
            self._score(i, torch.add(noise, logits, alpha=self._scale * sharpness), rows)
        self._score(_UNCOUPLED, logits, rows)

    def _score(self, ranking: int, logits: Tensor, rows: Tensor) -> None:
        rank = (logits > logits.gather(1, rows[:, None])).sum(dim=-1) + 1
        for value in (1 / torch.log2(1.0 + rank)).tolist():
            self._scores[ranking] = self._scores[ranking] * _FADE + (1 - _FADE) * value

"""Trees of a Domino head on a CPU, grown in compiled code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dartree_core.compiled import fits, growth
from dartree_core.compiled.arrays import Array, array
from dartree_core.compiled.growth_data import FLOATS, INTEGERS, Head, Limits
from dartree_core.compiled.products import Panels, crew_size
from dartree_core.config import Method, TreeConfig
from dartree_core.draft.builders.dartree import METHODS, expansion
from dartree_core.draft.heads import CorrectionHead
from dartree_core.draft.heads.base import Embed
from dartree_core.draft.heads.lean_domino import LeanDominoHead
from dartree_core.draft.supertree import Supertree
from dartree_core.draft.vocabulary import DraftVocabulary

if TYPE_CHECKING:
    from dartree_core.draft.drafter import BlockDraft

GROWN: frozenset[Method] = METHODS
"""Methods whose trees are grown here."""

_MOST_WEIGHTS = 1 << 20
"""Largest matrix that states are multiplied with: a head with larger ones spends its time in
products, where a library is as fast."""


def supports(head: CorrectionHead) -> bool:
    """True when trees of this head can be grown here."""
    if not isinstance(head, LeanDominoHead) or head.inputs is None:
        return False
    _, from_state, _, _ = head.published.gru()
    return fits(from_state) and from_state.numel() <= _MOST_WEIGHTS


class CompiledGrowth:
    """The builders of `draft.builders.dartree` for one head, in one call a tree.

    Selects what they select up to rounding: sums are in float32, whatever kernels the head's own
    products are on.

    Args:
        head: One that `supports` names.
        vocabulary: The drafter's.
        embed: The target's embedding.
        rounded: Keep in float16 what states are multiplied with, which every level reads.
    """

    def __init__(
        self,
        head: CorrectionHead,
        vocabulary: DraftVocabulary,
        embed: Embed,
        *,
        rounded: bool = False,
    ) -> None:
        assert isinstance(head, LeanDominoHead)
        assert head.inputs is not None
        published = head.published
        _, from_state, _, of_state = published.gru()
        first, last = published.linear(0), published.linear(2)
        width, mix = published.hidden_size, len(first.weight)
        w1 = first.weight.detach()
        bias = from_state.new_zeros(len(from_state)) if of_state is None else of_state
        ids = vocabulary.target_ids(w1.device)
        self._lean = head
        self._embed = embed
        self._mix = mix
        both = torch.cat((from_state, w1[:, width:]))
        # Compiled code knows their weights by address.
        kept = torch.float16 if rounded else torch.float32
        self._of_state = Panels(both, F.pad(bias, (0, mix)), kept)
        self._of_slot = Panels(w1[:, :width], first.bias, kept)
        names = ("of_state", "of_state_table", "of_slot", "of_slot_table")
        addresses = (*self._of_state.addresses, *self._of_slot.addresses)
        self._head = Head(
            kind=self._of_state.kind,
            inputs=array(head.inputs),
            **dict(zip(names, addresses, strict=True)),
            of_nothing=array(bias),
            last=array(last.weight),
            last_bias=_bias(last),
            ids=ids.numpy(),
            prefix_len=published.prefix_len,
        )
        self._row = np.full(vocabulary.reach, -1)
        self._row[self._head.ids] = np.arange(len(ids))

    def grows(self, method: Method, block: BlockDraft) -> bool:
        """True when trees of `method` on such a block can be grown here."""
        return method in GROWN and not isinstance(block.scale, Tensor)

    def grow(
        self,
        method: Method,
        block: BlockDraft,
        root: Tensor,
        tree: TreeConfig,
        depth: int,
        enough: int | None = None,
    ) -> Supertree:
        """As the builder of `method`, one of `GROWN`; arguments as there."""
        limits = self._limits(method, block, tree, depth, enough)
        token = int(root)
        work = limits.depths * limits.width * self._of_state.weights.size
        integers, floats, kept, candidates = map(
            torch.from_numpy,
            growth.grow(
                _contiguous(block.base_logits),
                _contiguous(block.hidden),
                np.float32(block.scale),
                token,
                self._given(token),
                self._head,
                limits,
                self._mix,
                crew_size(work),
            ),
        )
        prefix = self._head.prefix_len
        listed = [
            ids[: limits.branch] if slot < prefix else ids
            for slot, ids in enumerate(candidates.unbind())
        ]
        bonus = 0.0 if limits.spread else tree.depth_bonus
        return Supertree(
            **dict(zip(INTEGERS, integers.unbind(), strict=True)),
            **dict(zip(FLOATS, floats.unbind(), strict=True)),
            kept=kept,
            depth_bonus=bonus,
            candidates=listed,
        )

    def follow(
        self,
        block: BlockDraft,
        root: int,
        path: Sequence[int],
        rivals: Sequence[Tensor],
        first: int,
    ) -> list[tuple[float, float]]:
        """Log-probabilities of the tokens of `path` from number `first` on, given the path and by
        the marginals, as `grow` scores them; -inf for what cannot be drafted.

        Args:
            block: One that `grows` is true for.
            root: The last committed token.
            path: A token for every slot up to the last asked for.
            rivals: Per slot the tokens that scores are normalised over.
            first: See above.
        """
        rows = np.array([self._row_of(token) for token in path])
        others = np.full((len(path), max(len(listed) for listed in rivals)), -1)
        for slot, listed in enumerate(rivals[: len(path)]):
            others[slot, : len(listed)] = self._row[listed.numpy()]
        given = np.stack([self._given(token) for token in (root, *path[:-1])])
        found: list[list[float]] = growth.follow(
            _contiguous(block.base_logits),
            _contiguous(block.hidden),
            np.float32(block.scale),
            given,
            rows,
            others,
            first,
            self._head,
            self._mix,
        ).tolist()
        return [(own, draft) for own, draft in found]

    def _limits(
        self, method: Method, block: BlockDraft, tree: TreeConfig, depth: int, enough: int | None
    ) -> Limits:
        branch = expansion(block, self._lean, tree)
        size = min(block.base_logits.shape[1], max(tree.expansion_k, tree.candidates))
        spread = method == "dartree-fixed"
        width, most = (tree.limit, 0) if spread else (min(tree.width, branch), 0)
        if enough is not None and not spread:
            most = min(enough, tree.limit)
            # Whoever has as many betters on its own level is not among the best.
            width = min(width, most)
        bonus = np.float32(tree.depth_bonus)
        return Limits(depth, size, branch, width, spread, tree.limit, most, bonus)

    def _row_of(self, token: int) -> int:
        """The token's row of the draft vocabulary, or -1."""
        return int(self._row[token]) if token < len(self._row) else -1

    def _given(self, token: int) -> Array:
        """The token's product with the GRU's input weights, float32 `[3G]`."""
        row = self._row_of(token)
        if row >= 0:
            return cast("Array", self._head.inputs[row])
        return array(self._lean.of_token(self._embed(torch.tensor([token])))[0])


def _contiguous(x: Tensor) -> Array:
    """A float32 tensor on a CPU as an array, the same memory where it is contiguous."""
    found: Array = x.contiguous().numpy()
    return found


def _bias(layer: torch.nn.Linear) -> Array:
    """A layer's bias, zeros where it has none."""
    return array(layer.weight.new_zeros(len(layer.weight)) if layer.bias is None else layer.bias)

"""What drafter and head think of tokens that nobody proposed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dartree_core.config import Method
from dartree_core.draft.along import along
from dartree_core.draft.drafter import BlockDraft
from dartree_core.draft.heads import CorrectionHead
from dartree_core.draft.heads.base import Embed
from dartree_core.draft.supertree import Supertree

if TYPE_CHECKING:
    from dartree_core.draft.builders.compiled import CompiledGrowth

_UNHEADED: tuple[Method, ...] = ("dflash", "ddtree")


class Opinion:
    """Scores paths as the builder of a tree would have scored them.

    Args:
        tree: The builder's, on the host; its candidate sets are what scores are normalised over.
        block: The marginals it was built on.
        head: Corrects them, where `method` uses a head.
        embed: The target's embedding.
        method: Who built the tree.
        growth: Grows such trees in compiled code, and follows paths there; or None.
    """

    def __init__(
        self,
        tree: Supertree,
        block: BlockDraft,
        head: CorrectionHead,
        embed: Embed,
        method: Method,
        growth: CompiledGrowth | None = None,
    ) -> None:
        self.slots = min(len(tree.candidates), block.num_slots)
        self._tree, self._block, self._embed = tree, block, embed
        self._head = None if method in _UNHEADED else head
        self._growth = growth if growth and growth.grows(method, block) else None

    def of(self, path: Sequence[int], first: int) -> list[tuple[float, float]]:
        """Log-probability given the path, and by the marginals, of the tokens of `path` from
        number `first` to the last slot; -inf where the drafter cannot propose a token."""
        block, head = self._block, self._head
        device = block.base_logits.device
        count = min(len(path), self.slots)
        if first >= count:
            return []
        root = int(self._tree.token[0])
        if self._growth is not None:
            rivals = self._tree.candidates[:count]
            return self._growth.follow(block, root, path[:count], rivals, first)
        tokens = torch.tensor([root, *path[:count]], device=device)
        rows = block.vocabulary.to_rows(tokens[1:])
        if head is None:
            found = [self._marginal(slot, rows[slot]) for slot in range(first, count)]
        else:
            found = []
            steps = along(head, self._embed, block.hidden[:count], tokens)
            for slot, (shared, states) in enumerate(steps):
                if slot < first:
                    continue
                if slot < head.prefix_len:
                    found.append(self._marginal(slot, rows[slot]))
                else:
                    found.append(self._corrected(head, slot, rows[slot], shared, states))
        scores: list[list[float]] = torch.stack(found).tolist()
        return [(own, draft) for own, draft in scores]

    def _marginal(self, slot: int, row: Tensor) -> Tensor:
        base = self._block.base_logits[slot]
        logp = base[row.clamp(min=0)] - base.logsumexp(0)
        return torch.where(row >= 0, logp.clamp(max=0), -math.inf).expand(2)

    def _corrected(
        self, head: CorrectionHead, slot: int, row: Tensor, shared: Tensor, states: Tensor
    ) -> Tensor:
        """Normalised over the slot's candidates, which the token joins if it is not one."""
        block = self._block
        listed = self._tree.candidates[slot].to(row.device)
        rivals = block.vocabulary.to_rows(listed)
        rows = torch.cat((row.clamp(min=0)[None], rivals))
        logits = block.base_logits[slot][rows]
        correction = head.correct(shared, states, rows)[0].float()
        both = torch.stack((logits + block.scale * correction, logits))
        alone = both[:, 1:].masked_fill(rivals == row, -math.inf)
        norm = torch.cat((both[:, :1], alone), dim=1).logsumexp(dim=1)
        return torch.where(row >= 0, (both[:, 0] - norm).clamp(max=0), -math.inf)

"""A head's own estimate of acceptance, multiplied along the paths of a growing tree."""

from __future__ import annotations

import torch
from torch import Tensor

from dartree_core.draft.heads import CorrectionHead

_FLOOR = 1e-6


class PathConfidence:
    """The column `Supertree.confidence`, level by level.

    A head's confidence at a slot is the share of probability that drafter and target have in
    common there, given the path. Spread over the candidates as the drafter spreads its own, it
    makes a candidate's chance `confidence * q`: so a node's is its path's product of both.

    Args:
        head: Whose confidence; without one nothing is computed.
        device: Of the tree.
    """

    def __init__(self, head: CorrectionHead, device: torch.device) -> None:
        self._head = head
        self._levels = [torch.zeros(1, device=device)]

    def extend(self, shared: Tensor, states: Tensor, parent: Tensor) -> None:
        """Another level was selected.

        Args:
            shared: Its slot's row of what the head prepared.
            states: `[F, S]` states of the level above, or of its first nodes.
            parent: int64 `[q]`, rows of that level that the new nodes follow.
        """
        own = self._head.confidence(shared, states)
        if own is not None:
            along = self._levels[-1][: len(own)] + own.clamp(min=_FLOOR).log()
            self._levels.append(along.index_select(0, parent))

    @property
    def column(self) -> Tensor | None:
        """float32 `[N + 1]`, logarithms, 0 for the root; None from a head without confidence."""
        return torch.cat(self._levels) if len(self._levels) > 1 else None

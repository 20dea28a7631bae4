"""Which target tokens a drafter can propose."""

from __future__ import annotations

import torch
from torch import Tensor

from dartree_core.errors import CheckpointError


class DraftVocabulary:
    """Map between rows of the drafter's vocabulary and target ids.

    Public checkpoints draft over the whole vocabulary; the map is then the identity, cut to the
    rows both sides have (a padded embedding table on either side is never drafted from).
    `draft_vocab_ids` in a checkpoint names the target id of every row of a reduced vocabulary.
    """

    def __init__(self, size: int, ids: Tensor | None = None) -> None:
        self.size = size
        self.ids = ids
        self._order = None if ids is None else torch.argsort(ids)
        self.reach = size if ids is None else int(ids.max()) + 1
        """Every target id that can be proposed is below this."""

    @classmethod
    def from_checkpoint(
        cls, ids: Tensor | None, draft_vocab_size: int, target_vocab_size: int
    ) -> DraftVocabulary:
        """Check a checkpoint's map against the target.

        Raises:
            CheckpointError: The map is missing, has the wrong length, repeats ids or leaves the
                target's vocabulary.
        """
        if ids is None:
            return cls(min(draft_vocab_size, target_vocab_size))
        ids = ids.to(torch.int64)
        if ids.shape != (draft_vocab_size,):
            raise CheckpointError(
                f"draft_vocab_ids has {tuple(ids.shape)} entries for {draft_vocab_size} rows.",
                "The checkpoint is damaged; fetch it again.",
            )
        if len(set(ids.tolist())) != len(ids) or int(ids.min()) < 0:
            raise CheckpointError(
                "draft_vocab_ids repeats an id or holds a negative one.",
                "The checkpoint is damaged; fetch it again.",
            )
        if int(ids.max()) >= target_vocab_size:
            raise CheckpointError(
                f"draft_vocab_ids reaches {int(ids.max())}, but the target has "
                f"{target_vocab_size} tokens.",
                "This drafter was trained for another target; give the matching one.",
            )
        return cls(draft_vocab_size, ids)

    @property
    def reduced(self) -> bool:
        """True when the drafter cannot propose every target token."""
        return self.ids is not None

    def target_ids(self, device: torch.device) -> Tensor:
        """Target ids of all rows, int64 `[size]`."""
        return torch.arange(self.size, device=device) if self.ids is None else self.ids

    def to_target(self, rows: Tensor) -> Tensor:
        """Target ids of vocabulary rows, same shape."""
        return rows if self.ids is None else self.ids[rows]

    def to_rows(self, tokens: Tensor) -> Tensor:
        """Vocabulary rows of target ids, same shape; -1 where the drafter has none."""
        order = self._order
        if self.ids is None or order is None:
            return torch.where(tokens < self.size, tokens, -1)
        ordered = self.ids[order]
        at = torch.searchsorted(ordered, tokens).clamp(max=self.size - 1)
        return torch.where(ordered[at] == tokens, order[at], -1)

    def select(self, table: Tensor) -> Tensor:
        """The rows of a target table `[V, ...]` that the drafter can propose."""
        return table[: self.size] if self.ids is None else table[self.ids]

"""No correction: the marginals decide, as in DFlash and DDTree."""

from __future__ import annotations

from torch import Tensor

from dartree_core.draft.heads.base import CorrectionHead, Embed


class NoHead(CorrectionHead):
    """A head that corrects nothing, so that every tree builder works without one."""

    def prepare(self, hidden: Tensor) -> Tensor:
        """`[K, 0]`: nothing is shared."""
        return hidden[:, :0]

    def root_state(self, token: Tensor, embedding: Tensor) -> Tensor:
        """An empty state, `[1, 0]`."""
        return embedding[:, :0]

    def advance(
        self, states: Tensor, tokens: Tensor, embeddings: Tensor, shared: Tensor | None = None
    ) -> Tensor:
        """Empty states, `[F, 0]`."""
        return embeddings[:, :0]

    def follow(
        self, states: Tensor, tokens: Tensor, embed: Embed, shared: Tensor | None = None
    ) -> Tensor:
        """Empty states, `[F, 0]`."""
        return states.new_empty(len(tokens), 0)

    def correct(self, shared: Tensor, states: Tensor, candidates: Tensor | None) -> Tensor:
        """Zeros that broadcast over candidates, `[F, 1]`."""
        return states.new_zeros(len(states), 1)

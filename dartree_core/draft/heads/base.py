"""The correction-head interface (arXiv 2608.13524, section 3.1).

A head re-scores a slot's candidates *given the path taken*. It sees a whole frontier at once:
one call per depth, never one per node. A new head is one module that subclasses
`CorrectionHead` and one line in `heads/__init__.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn


class CorrectionHead(nn.Module, ABC):
    """Corrections to marginal logits, conditioned on a path.

    The state summarises a path. `F` is the number of frontier nodes, `S` the state's width,
    `C` the number of candidates, `V` the drafter's vocabulary.

    Attributes:
        prefix_len: First slots that stay uncorrected; the state still advances through them.
    """

    prefix_len: int = 0

    @abstractmethod
    def prepare(self, hidden: Tensor) -> Tensor:
        """What every node of a slot shares, once per block: `[K, H]` to `[K, ...]`."""

    @abstractmethod
    def root_state(self, token: Tensor, embedding: Tensor) -> Tensor:
        """States `[n, S]` after roots alone: token ids `[n]`, target embeddings `[n, H]`."""

    @abstractmethod
    def advance(self, states: Tensor, tokens: Tensor, embeddings: Tensor) -> Tensor:
        """States `[F, S]` after tokens `[F]` (embeddings `[F, H]`) follow parents' `states`."""

    @abstractmethod
    def correct(self, shared: Tensor, states: Tensor, candidates: Tensor | None) -> Tensor:
        """Additive logit corrections.

        Args:
            shared: One slot's row of `prepare`'s result.
            states: `[F, S]` parents' states.
            candidates: `[C]` rows of the drafter's vocabulary, or None for all of them.

        Returns:
            `[F, C]` (or `[F, V]`), in the states' dtype.
        """

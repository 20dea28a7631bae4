"""The correction-head interface (arXiv 2608.13524, section 3.1).

A head re-scores a slot's candidates *given the path taken*. It sees a whole frontier at once:
one call per depth, never one per node. A new head is one module that subclasses
`CorrectionHead` and one line in `heads/__init__.py`; if its checkpoints have fields of their
own, a reader in `draft/head_fields.py` too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from torch import Tensor, nn

Shapes: TypeAlias = Mapping[str, Sequence[int]]
"""Shapes of a checkpoint's tensors by name. Where its configuration leaves something open
(optional biases, a confidence head), they decide."""

Embed: TypeAlias = Callable[[Tensor], Tensor]
"""The target's embeddings `[n, H]` of token ids `[n]`."""


class CorrectionHead(nn.Module, ABC):
    """Corrections to marginal logits, conditioned on a path.

    The state summarises a path. `F` is the number of frontier nodes, `S` the state's width,
    `C` the number of candidates, `V` the drafter's vocabulary.

    Attributes:
        prefix_len: First slots that stay uncorrected; the state still advances through them.
        max_candidates: Likeliest tokens of a slot the head knows how to choose from; None for
            any number.
    """

    prefix_len: int = 0
    max_candidates: int | None = None

    @abstractmethod
    def prepare(self, hidden: Tensor) -> Tensor:
        """What every node of a slot shares, once per block: `[K, H]` to `[K, ...]`."""

    @abstractmethod
    def root_state(self, token: Tensor, embedding: Tensor) -> Tensor:
        """States `[n, S]` after roots alone: token ids `[n]`, target embeddings `[n, H]`."""

    @abstractmethod
    def advance(
        self, states: Tensor, tokens: Tensor, embeddings: Tensor, shared: Tensor | None = None
    ) -> Tensor:
        """States after one more token.

        Args:
            states: `[F, S]` parents' states.
            tokens: `[F]` target ids that follow them.
            embeddings: `[F, H]` the target's embeddings of `tokens`.
            shared: The row of `prepare`'s result for the slot `tokens` were drawn at. Heads
                whose state follows the slots need it, others ignore it.
        """

    def lean(self, tokens: Tensor, embed: Embed, kernel: str) -> CorrectionHead:
        """A head for decoding that corrects as this one does, up to rounding; itself where
        nothing is gained.

        Args:
            tokens: int64 `[Vd]`, the target ids that can be drafted, by row of the drafter's
                vocabulary.
            embed: The target's embedding.
            kernel: Of products with weights, see `dartree_core.models.kernels.named`.
        """
        return self

    def follow(
        self, states: Tensor, tokens: Tensor, embed: Embed, shared: Tensor | None = None
    ) -> Tensor:
        """`advance` for tokens that the drafter proposed; their embeddings may not be needed."""
        return self.advance(states, tokens, embed(tokens), shared)

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

    def confidence(self, shared: Tensor, states: Tensor) -> Tensor | None:
        """How likely a token drafted at a slot is to be accepted, before it is known which.

        An estimate for sizing trees; it never decides what is accepted.

        Args:
            shared: One slot's row of `prepare`'s result.
            states: `[F, S]` parents' states.

        Returns:
            float32 `[F]` in [0, 1], or None from a head that makes no such estimate.
        """
        return None

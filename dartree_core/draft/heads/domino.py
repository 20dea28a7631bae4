"""The Domino head: a GRU over the path and a low-rank output (arXiv 2605.29707).

Corrected logits at a slot are `base + W2 . silu(W1 . [z ; s])`: z is the slot's hidden state, s
the GRU state after the path so far. W1's z half is the same for all nodes of a slot. Published
heads have no biases; a checkpoint that brings some has them loaded.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dartree_core.draft.heads.base import CorrectionHead, Embed, Shapes
from dartree_core.draft.spec import DraftSpec


class DominoHead(CorrectionHead):
    """GRU correction head; parameter names are those of the public checkpoints.

    Args:
        spec: Shapes.
        shapes: Of a checkpoint's tensors, which say which biases there are.
    """

    def __init__(self, spec: DraftSpec, shapes: Shapes | None = None) -> None:
        super().__init__()
        found = shapes or {}
        self.prefix_len = spec.prefix_len
        self.hidden_size = spec.hidden_size
        state = spec.head_dim_state
        gru = any(name.startswith("prefix_gru.bias") for name in found)
        first, last = ("embed_proj.0.bias" in found, "embed_proj.2.bias" in found)
        self.prefix_gru = nn.GRU(spec.hidden_size, state, bias=gru, batch_first=True)
        self.embed_proj = nn.Sequential(
            nn.Linear(spec.hidden_size + state, spec.head_dim_embed, bias=first),
            nn.SiLU(),
            nn.Linear(spec.head_dim_embed, spec.draft_vocab_size, bias=last),
        )

    @property
    def _w1(self) -> Tensor:
        return self.linear(0).weight

    @property
    def _w2(self) -> Tensor:
        return self.linear(2).weight

    def linear(self, index: int) -> nn.Linear:
        """The correction's first (0) or last (2) layer."""
        module = self.embed_proj[index]
        assert isinstance(module, nn.Linear)
        return module

    def gru(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Weights from token and state `[3G, H]`, `[3G, G]`, and their biases."""
        from_token, from_state, *biases = self.prefix_gru.all_weights[0]
        of_token, of_state = biases or (None, None)
        return from_token, from_state, of_token, of_state

    def prepare(self, hidden: Tensor) -> Tensor:
        """W1's z half applied to `[K, H]`: `[K, E]`."""
        return F.linear(hidden, self._w1[:, : self.hidden_size], self.linear(0).bias)

    def root_state(self, token: Tensor, embedding: Tensor) -> Tensor:
        """One GRU step from zeros: nothing before the root enters."""
        from_token, _, of_token, of_state = self.gru()
        given = F.linear(embedding, from_token, of_token)
        held = torch.zeros_like(given) if of_state is None else of_state.expand_as(given)
        return gated(given, held, given.new_zeros(()))

    def advance(
        self, states: Tensor, tokens: Tensor, embeddings: Tensor, shared: Tensor | None = None
    ) -> Tensor:
        """One GRU step per frontier node."""
        return torch.gru_cell(embeddings, states, *self.gru())

    def lean(self, tokens: Tensor, embed: Embed, kernel: str) -> CorrectionHead:
        """The same head with a table and fewer products."""
        from dartree_core.draft.heads.lean_domino import LeanDominoHead

        return LeanDominoHead(self, tokens, embed, kernel)

    def correct(self, shared: Tensor, states: Tensor, candidates: Tensor | None) -> Tensor:
        """`W2[candidates] . silu(shared + W1_s . s)`."""
        mixed = F.silu(shared + F.linear(states, self._w1[:, self.hidden_size :]))
        w2: Tensor = self._w2
        bias: Tensor | None = self.linear(2).bias
        if candidates is not None:
            w2 = w2.index_select(0, candidates)
            bias = None if bias is None else bias.index_select(0, candidates)
        return F.linear(mixed, w2, bias)


def gated(given: Tensor, held: Tensor, states: Tensor) -> Tensor:
    """A GRU's new states `[n, G]`, of its products with the token and the state, `[n, 3G]`."""
    split = 2 * given.shape[1] // 3
    reset, update = (given[:, :split] + held[:, :split]).sigmoid_().chunk(2, dim=-1)
    fresh = torch.addcmul(given[:, split:], reset, held[:, split:]).tanh_()
    return torch.lerp(fresh, states.expand_as(fresh), update)

"""The Domino head: a GRU over the path and a low-rank output (arXiv 2605.29707).

Corrected logits at a slot are `base + W2 . silu(W1 . [z ; s])`: z is the slot's hidden state, s
the GRU state after the path so far. W1's z half is the same for all nodes of a slot.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dartree_core.draft.heads.base import CorrectionHead
from dartree_core.draft.spec import DraftSpec


class DominoHead(CorrectionHead):
    """GRU correction head; parameter names are those of the public checkpoints."""

    def __init__(self, spec: DraftSpec) -> None:
        super().__init__()
        self.prefix_len = spec.prefix_len
        self.hidden_size = spec.hidden_size
        state = spec.head_dim_state
        self.prefix_gru = nn.GRU(spec.hidden_size, state, bias=False, batch_first=True)
        self.embed_proj = nn.Sequential(
            nn.Linear(spec.hidden_size + state, spec.head_dim_embed, bias=False),
            nn.SiLU(),
            nn.Linear(spec.head_dim_embed, spec.draft_vocab_size, bias=False),
        )

    @property
    def _w1(self) -> Tensor:
        return self._linear(0).weight

    @property
    def _w2(self) -> Tensor:
        return self._linear(2).weight

    def _linear(self, index: int) -> nn.Linear:
        module = self.embed_proj[index]
        assert isinstance(module, nn.Linear)
        return module

    def prepare(self, hidden: Tensor) -> Tensor:
        """W1's z half applied to `[K, H]`: `[K, E]`."""
        return F.linear(hidden, self._w1[:, : self.hidden_size])

    def root_state(self, token: Tensor, embedding: Tensor) -> Tensor:
        """One GRU step from zeros: nothing before the root enters."""
        zeros = embedding.new_zeros(len(embedding), self.prefix_gru.hidden_size)
        return self.advance(zeros, token, embedding)

    def advance(self, states: Tensor, tokens: Tensor, embeddings: Tensor) -> Tensor:
        """One GRU step per frontier node."""
        from_token: Tensor = self.prefix_gru.weight_ih_l0  # type: ignore[assignment]
        from_state: Tensor = self.prefix_gru.weight_hh_l0  # type: ignore[assignment]
        return torch.gru_cell(embeddings, states, from_token, from_state)

    def correct(self, shared: Tensor, states: Tensor, candidates: Tensor | None) -> Tensor:
        """`W2[candidates] . silu(shared + W1_s . s)`."""
        mixed = F.silu(shared + F.linear(states, self._w1[:, self.hidden_size :]))
        w2 = self._w2 if candidates is None else self._w2[candidates]
        return F.linear(mixed, w2)

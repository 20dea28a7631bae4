"""The candidate selector of DFlash2: a bilinear score of adjacent tokens.

The correction of candidate b after token a at a slot with hidden state h is
`(A[a] * (P . h)) . B[b]`, added to the slot's logits; it was trained to choose among the slot's
`selector_top_k` likeliest tokens and says nothing about others (z-lab's `dflash` package).
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from dartree_core.draft.heads.base import CorrectionHead, Embed, Shapes
from dartree_core.draft.spec import DraftSpec


class CandidateSelector(nn.Module):
    """The selector's parameters, by the names of the public checkpoints."""

    def __init__(self, spec: DraftSpec) -> None:
        super().__init__()
        rank = spec.head_dim_embed
        self.predecessor_codebook = nn.Embedding(spec.vocab_size, rank)
        self.successor_codebook = nn.Embedding(spec.draft_vocab_size, rank)
        self.hidden_projection = nn.Linear(spec.hidden_size, rank, bias=False)


class SelectorHead(CorrectionHead):
    """First-order correction: the state is the last token's row of A."""

    def __init__(self, spec: DraftSpec, shapes: Shapes | None = None) -> None:
        super().__init__()
        self.max_candidates = spec.head_candidates
        self.candidate_selector = CandidateSelector(spec)

    def prepare(self, hidden: Tensor) -> Tensor:
        """`P . h`, `[K, H]` to `[K, r]`."""
        projected: Tensor = self.candidate_selector.hidden_projection(hidden)
        return projected

    def root_state(self, token: Tensor, embedding: Tensor) -> Tensor:
        """`A[token]`; 0 for ids the drafter does not know."""
        return self._row(token)

    def advance(
        self, states: Tensor, tokens: Tensor, embeddings: Tensor, shared: Tensor | None = None
    ) -> Tensor:
        """`A[tokens]`: only the last token counts."""
        return self._row(tokens)

    def follow(
        self, states: Tensor, tokens: Tensor, embed: Embed, shared: Tensor | None = None
    ) -> Tensor:
        """As `advance`: the target's embeddings do not enter."""
        return self._row(tokens)

    def _row(self, tokens: Tensor) -> Tensor:
        table = self.candidate_selector.predecessor_codebook.weight
        known = tokens < len(table)
        return F.embedding(tokens.clamp(max=len(table) - 1), table) * known[:, None]

    def correct(self, shared: Tensor, states: Tensor, candidates: Tensor | None) -> Tensor:
        """`(states * P . h) . B[candidates]`."""
        table = self.candidate_selector.successor_codebook.weight
        return F.linear(states * shared, table if candidates is None else table[candidates])

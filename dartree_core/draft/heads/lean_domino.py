"""The Domino head for decoding: fewer and smaller products, the same corrections.

`DominoHead` stays the head as published and as trained, and the oracle in tests. What decoding
adds: a token's input product comes from a table, all that reads a state is one product, and the
products run on a kernel for small batches.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from dartree_core.draft.heads.base import CorrectionHead, Embed
from dartree_core.draft.heads.domino import DominoHead, gated
from dartree_core.models import kernels

_MOST_BYTES = 256 << 20
"""Largest table kept; a vocabulary of 150,000 with a wide state would take four times as much."""


class LeanDominoHead(CorrectionHead):
    """A Domino head whose states carry what they will be multiplied with.

    States are `[n, 4G + E]`: the GRU's own, `G`; what its next step holds, `3G`; and their half
    of the correction's first layer, `E`.

    Args:
        head: The head as read from a checkpoint; its weights are shared where the kernel allows.
        tokens, embed, kernel: See `CorrectionHead.lean`.

    Attributes:
        published: That head.
        of_token: The GRU's product with an embedding, `[n, H]` to `[n, 3G]`.
        inputs: Its results for all draft tokens, `[Vd, 3G]`; None where they would be too large.
    """

    def __init__(self, head: DominoHead, tokens: Tensor, embed: Embed, kernel: str) -> None:
        super().__init__()
        self.prefix_len = head.prefix_len
        self.published = head
        from_token, from_state, of_token, of_state = head.gru()
        first, last = head.linear(0), head.linear(2)
        w1, h = first.weight.detach(), head.hidden_size
        self._width = from_state.shape[1]
        pack = kernels.named(kernel)
        self._of_slot = pack(w1[:, :h].contiguous(), first.bias)
        self.of_token = pack(from_token, of_token)
        bias = None if of_state is None else F.pad(of_state, (0, len(w1)))
        self._of_state = pack(torch.cat((from_state, w1[:, h:])), bias)
        self._held_by_root = of_state
        self._w2, self._bias = last.weight.detach(), last.bias
        self.inputs: Tensor | None = None
        if len(tokens) * from_token.shape[0] * from_token.element_size() <= _MOST_BYTES:
            self._row = tokens.new_zeros(int(tokens.max()) + 1)
            self._row[tokens] = torch.arange(len(tokens), device=tokens.device)
            self.inputs = F.linear(embed(tokens), from_token, of_token)

    def prepare(self, hidden: Tensor) -> Tensor:
        """W1's z half applied to `[K, H]`: `[K, E]`."""
        return self._of_slot(hidden)

    def root_state(self, token: Tensor, embedding: Tensor) -> Tensor:
        """One GRU step from zeros: nothing before the root enters."""
        given = self.of_token(embedding)
        held = given.new_zeros(()) if self._held_by_root is None else self._held_by_root
        return self._carrying(gated(given, held.expand_as(given), given.new_zeros(())))

    def advance(
        self, states: Tensor, tokens: Tensor, embeddings: Tensor, shared: Tensor | None = None
    ) -> Tensor:
        """One GRU step per frontier node."""
        return self._after(states, self.of_token(embeddings))

    def follow(
        self, states: Tensor, tokens: Tensor, embed: Embed, shared: Tensor | None = None
    ) -> Tensor:
        """One GRU step per frontier node, by table unless that would be too large."""
        if self.inputs is None:
            return self.advance(states, tokens, embed(tokens))
        row = self._row.index_select(0, tokens)
        return self._after(states, self.inputs.index_select(0, row))

    def _after(self, states: Tensor, given: Tensor) -> Tensor:
        """States after tokens whose input products are `given`, `[n, 3G]`."""
        g = self._width
        return self._carrying(gated(given, states[:, g : 4 * g], states[:, :g]))

    def _carrying(self, own: Tensor) -> Tensor:
        """States `[n, 4G + E]` of the GRU's `[n, G]`."""
        return torch.cat((own, self._of_state(own)), dim=1)

    def correct(self, shared: Tensor, states: Tensor, candidates: Tensor | None) -> Tensor:
        """`W2[candidates] . silu(shared + W1_s . s)`."""
        mixed = F.silu(shared + states[:, 4 * self._width :])
        if candidates is None:
            return F.linear(mixed, self._w2, self._bias)
        bias = None if self._bias is None else self._bias.index_select(0, candidates)
        return F.linear(mixed, self._w2.index_select(0, candidates), bias)

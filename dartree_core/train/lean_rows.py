"""Answering many prompts at once on the lean path: rows of a batch are rows of its products.

transformers' caches grow by copying all keys and values at every token and, where heads share
them, repeat them before every product; on a CPU that costs more than the model. Here keys and
values lie in one arena, and prompts are read one behind the other, without padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from dartree_core.models.lean import Layer, LeanTarget

_AT_ONCE = 1024
"""Prompt tokens read in one pass."""
_GRAIN = 16
"""Keys are looked at in multiples of this: products of ever new shapes are slow to set up."""


class LeanRows:
    """A batch on the lean path, see `generate.Rows`.

    Args:
        target: The model.
        prompts: Token ids, none empty.
        most: Tokens that will be added to each at most.
        dtype: Of keys and values, and of the products with them; None for the activations'.
    """

    def __init__(
        self,
        target: LeanTarget,
        prompts: Sequence[Sequence[int]],
        most: int,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._target = target
        self._prompts = prompts
        device = target.device
        self._lengths = torch.tensor([len(p) for p in prompts], device=device)
        self._capacity = -(-(max(map(len, prompts)) + most) // _GRAIN) * _GRAIN
        self._cos, self._sin = target.rope_tables(self._capacity)
        self._group = target.num_heads // target.kv_heads
        # Zeros, not whatever lies there: a masked NaN would still be a NaN.
        self._data = torch.zeros(
            target.num_layers,
            2,
            len(prompts) * target.kv_heads,
            self._capacity,
            target.head_dim,
            dtype=dtype or target.dtype,
            device=device,
        )

    def begin(self) -> Tensor:
        """Read the prompts; logits `[b, V]` after each."""
        shared = _common(self._prompts)
        if shared:
            self._read(range(1), 0, shared)
            known = self._data[:, :, : self._target.kv_heads, :shared]
            self._data[:, :, :, :shared] = known.repeat(1, 1, len(self._prompts), 1, 1)
        return torch.cat([self._read(part, shared) for part in self._parts(shared)])

    def step(self, tokens: Tensor) -> Tensor:
        """Add a token (int64 `[b]`) to each row; logits `[b, V]` after it."""
        target, n, kv = self._target, len(tokens), self._target.kv_heads
        dim, dtype = target.head_dim, self._data.dtype
        end = -(-(int(self._lengths.max()) + 1) // _GRAIN) * _GRAIN
        cos, sin = self._cos[self._lengths], self._sin[self._lengths]
        seen = torch.arange(end, device=target.device) <= self._lengths[:, None]
        hidden = torch.zeros(n, end, device=target.device).masked_fill_(~seen, float("-inf"))
        hidden = hidden.repeat_interleave(kv, dim=0)[:, None]
        rows = torch.arange(n * kv, device=target.device)
        at = self._lengths.repeat_interleave(kv)

        def attend(index: int, layer: Layer, qkv: Tensor) -> Tensor:
            q, k, v = target.heads(layer, qkv, cos, sin)
            keys, values = self._data[index, :, : n * kv]
            keys[rows, at] = k.transpose(0, 1).reshape(n * kv, dim).to(dtype)
            values[rows, at] = v.transpose(0, 1).reshape(n * kv, dim).to(dtype)
            q = q.transpose(0, 1).reshape(n * kv, self._group, dim).to(dtype)
            scores = torch.bmm(q, keys[:, :end].transpose(1, 2)).float() * dim**-0.5
            weights = torch.softmax(scores + hidden, dim=-1).to(dtype)
            out = torch.bmm(weights, values[:, :end])
            return out.to(qkv.dtype).reshape(n, target.num_heads * dim)

        x, _ = target.decode(target.embed(tokens), attend, ())
        self._lengths = self._lengths + 1
        return target.project(x).float()

    def keep(self, chosen: Sequence[int]) -> list[int]:
        """Drop all rows but these (ascending); returns them in the order in which they lie now.

        Rows from the end move into the places of dropped ones, so little is copied.
        """
        kept = set(chosen)
        count = len(chosen)
        tail = iter([row for row in chosen if row >= count])
        order = [row if row in kept else next(tail) for row in range(count)]
        kv = self._target.kv_heads
        for to, row in enumerate(order):
            if to != row:
                self._data[:, :, to * kv : (to + 1) * kv] = self._data[
                    :, :, row * kv : (row + 1) * kv
                ]
        self._lengths = self._lengths[torch.tensor(order, device=self._lengths.device)]
        return order

    def _parts(self, shared: int) -> Iterator[range]:
        """Ranges of prompts to be read together."""
        start = tokens = 0
        for row, prompt in enumerate(self._prompts):
            if tokens and tokens + len(prompt) - shared > _AT_ONCE:
                yield range(start, row)
                start, tokens = row, 0
            tokens += len(prompt) - shared
        yield range(start, len(self._prompts))

    def _read(self, part: range, first: int, last: int | None = None) -> Tensor:
        """Read tokens `[first:last]` of some prompts, behind what is known of each; logits
        `[rows, V]` after the last token of each."""
        target, kv = self._target, self._target.kv_heads
        texts = [self._prompts[row][first:last] for row in part]
        counts = [len(text) for text in texts]
        places = torch.cat([torch.arange(first, first + n) for n in counts]).to(target.device)
        cos, sin = self._cos[places], self._sin[places]
        masks = [self._behind(n, first) for n in counts]

        def attend(index: int, layer: Layer, qkv: Tensor) -> Tensor:
            queries, fresh, values = target.heads(layer, qkv, cos, sin)
            out, start = [], 0
            for row, n, mask in zip(part, counts, masks, strict=True):
                end = start + n
                k, v = self._data[index, :, row * kv : (row + 1) * kv, : first + n]
                k[:, first:], v[:, first:] = fresh[:, start:end], values[:, start:end]
                q = queries[:, start:end]
                out.append(target.attention(q, k.to(q.dtype), v.to(q.dtype), mask))
                start = end
            return torch.cat(out)

        tokens = torch.tensor([t for text in texts for t in text], device=target.device)
        x, _ = target.decode(target.embed(tokens), attend, ())
        ends = torch.tensor(counts, device=target.device).cumsum(0) - 1
        return target.project(x[ends]).float()

    def _behind(self, n: int, first: int) -> Tensor:
        """What `n` tokens behind `first` others see, as `LeanTarget.attention` wants it."""
        seen = torch.ones(n, first + n, dtype=torch.bool, device=self._target.device).tril(first)
        return seen.repeat(self._group, 1)


def _common(prompts: Sequence[Sequence[int]]) -> int:
    """Length of what all prompts start with; at least one token of each is left."""
    longest = min(map(len, prompts)) - 1
    first = prompts[0]
    for at in range(longest):
        if any(prompt[at] != first[at] for prompt in prompts):
            return at
    return longest

"""A decoder's layers with compiled loops between their products."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dartree_core.compiled import loops
from dartree_core.compiled.arrays import Array

_KEPT = 16
"""Rows up to which a pass's buffers are kept; beside a longer pass, making them is nothing."""
_FEW = 1024
"""Rows times positions up to which attention is quicker done here than on its way to a library,
which shares it among cores."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes that all layers share."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float


@dataclass(frozen=True, slots=True)
class Part:
    """A layer; products map float32 rows `[n, in]` to `[n, out]`.

    Attributes:
        attention_norm, mlp_norm: `[H]`, weights of root-mean-square norms.
        qkv: Queries, keys and values of all heads.
        gain: `[heads + kv_heads, D]`, weights of the norms of queries and keys; ones without.
        normed: Whether there are such norms.
        out, gate_up, down: The other products.
    """

    attention_norm: Array
    qkv: Callable[[Tensor], Tensor]
    gain: Array
    normed: bool
    out: Callable[[Tensor], Tensor]
    mlp_norm: Array
    gate_up: Callable[[Tensor], Tensor]
    down: Callable[[Tensor], Tensor]


class _Buffer:
    """A float32 tensor and the same memory as an array."""

    __slots__ = ("array", "tensor")

    def __init__(self, *shape: int) -> None:
        self.tensor = torch.zeros(shape)
        self.array: Array = self.tensor.numpy()


class _Room:
    """What a pass over `n` rows writes to.

    Attributes:
        queries: `[kv_heads, heads / kv_heads * n, D]`, those that share keys together; the
            tensor is a batch of one.
        mixed: `[n, heads * D]`, what attention gives.
        normed: `[n, H]`, what products read.
        gated: `[n, M]`.
    """

    __slots__ = ("gated", "mixed", "normed", "queries")

    def __init__(self, shape: Shape, n: int) -> None:
        width = shape.head_dim
        self.queries = _Buffer(shape.kv_heads, shape.heads // shape.kv_heads * n, width)
        self.queries.tensor = self.queries.tensor[None]
        self.mixed = _Buffer(n, shape.heads * width)
        self.normed = _Buffer(n, shape.hidden)
        self.gated = _Buffer(n, shape.intermediate)


class _Rooms(threading.local):
    """Rooms by their rows, a thread's own."""

    def __init__(self) -> None:
        self.by_rows: dict[int, _Room] = {}


class CompiledLayers:
    """Runs layers on a few rows of one sequence.

    Args:
        parts: The layers.
        norm: `[H]`, weights of the norm after the last.
        shape: Their sizes.
    """

    def __init__(self, parts: Sequence[Part], norm: Array, shape: Shape) -> None:
        self._parts = parts
        self._shape = shape
        self._eps = np.float32(shape.eps)
        self._scale = np.float32(shape.head_dim**-0.5)
        # Of the norm that a layer's end leads to: the next layer's, or the last of all.
        self._next = [*(part.attention_norm for part in parts[1:]), norm]
        self._rooms = _Rooms()

    def __call__(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        stores: Sequence[Array],
        known: Callable[[], Sequence[Tensor]],
        start: int,
        *,
        context: Tensor | None = None,
        mask: Tensor | None = None,
        taps: Sequence[int] = (),
    ) -> tuple[Tensor, Tensor | None]:
        """One pass.

        Args:
            x: float32 `[n, H]`, embedded rows; written over.
            cos, sin: `[t + n, D]`, rotary factors of the positions of context and rows.
            stores: Keys, then values, of every layer in turn, `[kv_heads, capacity, D]`: behind
                `start` rows the new ones are written.
            known: Gives the same memory as tensors, `[1, kv_heads, start + t + n, D]`; short
                passes do not ask.
            start: See `stores`.
            context: `[t, H]`, rows that are only attended to, the same in every layer, or None.
            mask: Additive `[heads / kv_heads * n, start + t + n]`, or None for none.
            taps: Layers whose outputs are wanted.

        Returns:
            Final-normed rows `[n, H]`, and tapped outputs side by side `[n, len(taps) * H]` or
            None. The rows are valid until this thread's next pass.
        """
        n, hidden = x.shape
        room = self._room(n)
        new = 0 if context is None else len(context)
        stream, rows, block = x.numpy(), room.normed.tensor, room.normed.array
        if context is not None:
            rows = torch.cat((context, x))
            block = rows.numpy()[new:]
        factors = cos.numpy(), sin.numpy()
        end = start + new + n
        few = mask is None and n * end <= _FEW
        views = () if few else known()
        features = np.empty((n, len(taps) * hidden), np.float32)
        places = {layer: at * hidden for at, layer in enumerate(taps)}
        loops.norm(stream, self._parts[0].attention_norm, self._eps, block)
        for i, part in enumerate(self._parts):
            loops.heads(
                part.qkv(rows).numpy(),
                part.gain,
                part.normed,
                self._eps,
                *factors,
                new,
                room.queries.array,
                stores[2 * i],
                stores[2 * i + 1],
                start,
            )
            if few:
                keys, values = stores[2 * i], stores[2 * i + 1]
                loops.attend(room.queries.array, keys, values, end, self._scale, room.mixed.array)
            else:
                attended = F.scaled_dot_product_attention(
                    room.queries.tensor, views[2 * i], views[2 * i + 1], mask
                )
                loops.by_row(attended[0].contiguous().numpy(), room.mixed.array)
            delta = part.out(room.mixed.tensor).numpy()
            loops.add_norm(stream, delta, part.mlp_norm, self._eps, room.normed.array)
            loops.gated(part.gate_up(room.normed.tensor).numpy(), room.gated.array)
            delta = part.down(room.gated.tensor).numpy()
            loops.add_norm(stream, delta, self._next[i], self._eps, block)
            at = places.get(i)
            if at is not None:
                features[:, at : at + hidden] = stream
        return rows[new:], torch.from_numpy(features) if taps else None

    def norm(self, x: Tensor, weight: Array) -> Tensor:
        """Root-mean-square norm of rows `[n, H]`, with weights `[H]`."""
        out = torch.empty_like(x)
        loops.norm(x.numpy(), weight, self._eps, out.numpy())
        return out

    def _room(self, n: int) -> _Room:
        room = self._rooms.by_rows.get(n)
        if room is None:
            room = _Room(self._shape, n)
            if n <= _KEPT:
                self._rooms.by_rows[n] = room
        return room

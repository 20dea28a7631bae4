"""Runs whole passes of a decoder over a few rows in compiled code."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dartree_core.compiled import pass_loops
from dartree_core.compiled.arrays import Array, room
from dartree_core.compiled.openmp import MEETING
from dartree_core.compiled.products import Panels, code_width
from dartree_core.compiled.tiles import BYTE, MOST, PANEL

_KEPT = 16
"""Rows up to which a pass's buffers are kept; beside a longer pass, making them is nothing."""
_APART = 16
"""Floats by which rows that products read are longer than they need be: rows a power of two apart
fall onto the same lines of a cache."""
_POSITIONS = 256
"""Buffers for attention grow by so many positions."""
_WORTH_SHARING = 1 << 20
"""Weights times rows from which threads beside the caller's are worth waking."""


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
class Layer:
    """A layer.

    Attributes:
        attention_norm, mlp_norm: `[H]`, weights of root-mean-square norms.
        qkv: Queries, keys and values of all heads.
        gain: `[heads + kv_heads, D]`, weights of the norms of queries and keys; ones without.
        out, gate_up, down: The other products.
    """

    attention_norm: Array
    qkv: Panels
    gain: Array
    out: Panels
    mlp_norm: Array
    gate_up: Panels
    down: Panels

    @property
    def products(self) -> tuple[Panels, Panels, Panels, Panels]:
        """In the order of `pass_loops.Weights`."""
        return self.qkv, self.out, self.gate_up, self.down


class _Room:
    """Buffers of passes over `n` rows behind `new` of context; see `pass_loops.Rows`."""

    def __init__(self, shape: Shape, kind: int, new: int, n: int) -> None:
        heads, width = shape.heads, shape.head_dim
        shared = heads // shape.kv_heads
        deepest = max(shape.hidden, heads * width, shape.intermediate)
        self._codes = new + n, code_width(deepest) if kind == BYTE else 0
        self._width = width
        self.rows = {
            "queries": room(shape.kv_heads, shared * n, width),
            "normed": room(new + n, shape.hidden + _APART),
            "mixed": room(n, heads * width + _APART),
            "gated": room(n, shape.intermediate + _APART),
            "qkv": room(new + n, _whole((heads + 2 * shape.kv_heads) * width)),
            "delta": room(n, _whole(shape.hidden)),
            "gate_up": room(n, _whole(2 * shape.intermediate)),
            "place": room(MEETING, dtype=torch.int64),
        }
        self._threads = self._positions = 0
        self._own: dict[str, Array] = {}

    def own(self, threads: int, end: int) -> dict[str, Array]:
        """What every thread has for itself, for attention to `end` positions."""
        if threads > self._threads or end > self._positions:
            self._threads = max(threads, self._threads)
            self._positions = -(-max(end, self._positions) // _POSITIONS) * _POSITIONS
            self._own = {
                "codes": room(self._threads, *self._codes),
                "scores": room(self._threads, MOST, self._positions + _APART),
                "block": room(self._threads, self._width, PANEL),
                "attended": room(self._threads, MOST, self._width),
            }
        return self._own


class _Rooms(threading.local):
    """Rooms by their rows, a thread's own."""

    def __init__(self) -> None:
        self.by_rows: dict[tuple[int, int], _Room] = {}


class CompiledPass:
    """Runs a decoder on a few rows of one sequence.

    Args:
        layers: Its layers, at least one; all products are of the same kind.
        norm: `[H]`, weights of the norm after the last.
        shape: Their sizes.
        normed: Whether queries and keys are normed.
        head: Maps normed rows to logits, or None.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        norm: Array,
        shape: Shape,
        *,
        normed: bool,
        head: Panels | None = None,
    ) -> None:
        self._shape = shape
        self._head = head
        self._layers = layers  # compiled code knows their weights by address
        products = [layer.products for layer in layers]
        norms = [part for layer in layers for part in (layer.attention_norm, layer.mlp_norm)]
        self._weights = pass_loops.Weights(
            layers[0].qkv.kind,
            np.array([[p.weights.ctypes.data for p in four] for four in products]),
            np.array([[p.table.ctypes.data for p in four] for four in products]),
            head.weights.ctypes.data if head else 0,
            head.table.ctypes.data if head else 0,
            np.stack([*norms, norm]),
            np.stack([layer.gain for layer in layers]),
            normed,
            np.float32(shape.eps),
            shape.intermediate,
            room(PANEL),
        )
        self._size = sum(p.weights.size for four in products for p in four)
        self._rooms = _Rooms()

    def __call__(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        cache: Tensor,
        start: int,
        *,
        context: Tensor | None = None,
        visible: Tensor | None = None,
        taps: Sequence[int] = (),
        last_only: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """One pass.

        Args:
            x: float32 `[n, H]`, embedded rows; written over.
            cos, sin: `[t + n, D]`, rotary factors of the positions of context and rows.
            cache: `[L, 2, kv_heads, capacity, D]`, keys and values; filled from `start` on.
            start: Rows there already.
            context: `[t, H]`, rows that are only attended to, the same in every layer, or None.
            visible: bool `[n, n]`, which rows a row sees beside all before them; None for those
                up to itself.
            taps: Layers whose outputs are wanted.
            last_only: Whether only the last row's logits are.

        Returns:
            Logits `[n or 1, V]`, or without a head final-normed rows `[n, H]`; and tapped outputs
            side by side `[n, len(taps) * H]`, or None.
        """
        n, hidden = x.shape
        new = 0 if context is None else len(context)
        threads = torch.get_num_threads() if n * self._size > _WORTH_SHARING else 1
        buffers = self._room(new, n)
        normed = buffers.rows["normed"]
        if context is not None:
            normed[:new, :hidden] = context.numpy()
        seen = torch.ones(n, n, dtype=torch.bool).tril() if visible is None else visible
        asked = 0 if self._head is None else 1 if last_only else n
        logits = x.new_empty(asked, 0 if self._head is None else self._head.panels * PANEL)
        features = x.new_empty(n, len(taps) * hidden)
        pass_loops.run(
            self._weights,
            pass_loops.Rows(
                x=x.numpy(),
                cos=cos.numpy(),
                sin=sin.numpy(),
                cache=cache.numpy(),
                start=start,
                visible=seen.contiguous().numpy(),
                taps=np.array(taps, np.int64),
                features=features.numpy(),
                logits=logits.numpy(),
                **buffers.rows,
                **buffers.own(threads, start + new + n),
            ),
            threads,
        )
        out = logits
        if self._head is None:
            out = torch.from_numpy(normed[new:, :hidden].copy())
        elif self._head.outs < logits.shape[1]:
            out = logits[:, : self._head.outs].contiguous()
        return out, features if taps else None

    def _room(self, new: int, n: int) -> _Room:
        found = self._rooms.by_rows.get((new, n))
        if found is None:
            found = _Room(self._shape, self._weights.kind, new, n)
            if new + n <= _KEPT:
                self._rooms.by_rows[new, n] = found
        return found


def _whole(width: int) -> int:
    """As wide as whole panels."""
    return -(-width // PANEL) * PANEL

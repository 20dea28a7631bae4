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
from dartree_core.compiled.products import Panels, code_width, crew_size
from dartree_core.compiled.tiles import MOST, PANEL

_APART = 16
"""Floats by which rows that products read are longer than they need be: rows a power of two apart
fall onto the same lines of a cache."""
_SHORT = 24
"""Rows up to which views of the buffers are kept; beside a longer pass, making them is nothing."""


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


class _Room(threading.local):
    """Buffers of passes, a thread's own; see `pass_loops.Rows`. They hold the longest pass so far,
    and every pass takes their first rows."""

    def __init__(self, shape: Shape, kind: int) -> None:
        heads, width = shape.heads, shape.head_dim
        deepest = max(shape.hidden, heads * width, shape.intermediate)
        self._shape = shape
        self._widths = {
            "normed": shape.hidden + _APART,
            "qkv": _whole((heads + 2 * shape.kv_heads) * width),
            "codes": code_width(kind, deepest),
            "queries": heads * width,
            "mixed": heads * width + _APART,
            "gated": shape.intermediate + _APART,
            "delta": _whole(shape.hidden),
            "gate_up": _whole(2 * shape.intermediate),
        }
        self._place = np.zeros(MEETING, np.int64)
        self._rows = self._threads = self._positions = 0
        self._flat: dict[str, Array] = {}
        self._views: dict[tuple[int, int], dict[str, Array]] = {}
        self._own: dict[str, Array] = {}

    def rows(self, new: int, n: int) -> dict[str, Array]:
        """For `n` rows behind `new` of context."""
        if new + n > self._rows:
            self._rows = new + n
            self._flat = {name: room(self._rows * width) for name, width in self._widths.items()}
            self._views.clear()
        found = self._views.get((new, n))
        if found is None:
            found = {"place": self._place}
            for name, width in self._widths.items():
                count = new + n if name in ("normed", "qkv", "codes") else n
                found[name] = self._flat[name][: count * width].reshape(count, width)
            groups, head_dim = self._shape.kv_heads, self._shape.head_dim
            found["queries"] = found["queries"].reshape(groups, -1, head_dim)
            if new + n <= _SHORT:
                self._views[new, n] = found
        return found

    def own(self, threads: int, end: int) -> dict[str, Array]:
        """What every thread has for itself, for attention to `end` positions."""
        if threads > self._threads or end > self._positions:
            self._threads = max(threads, self._threads)
            if end > self._positions:
                self._positions = _whole(max(end, self._positions * 3 // 2))
            width = self._shape.head_dim
            self._own = {
                "scores": room(self._threads, MOST, self._positions + _APART),
                "block": room(self._threads, width, PANEL),
                "attended": room(self._threads, MOST, width),
            }
        return self._own


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
        sizes = [(p.outs, p.depth) for p in layers[0].products]
        inner, hidden, half = shape.heads * shape.head_dim, shape.hidden, shape.intermediate
        qkv = inner + 2 * shape.kv_heads * shape.head_dim
        wanted = [(qkv, hidden), (hidden, inner), (2 * half, hidden), (hidden, half)]
        assert sizes == wanted, f"{sizes} are not the products of {shape}"
        products = [layer.products for layer in layers]
        _line_up([*(p for four in products for p in four), *([head] if head else [])])
        norms = [part for layer in layers for part in (layer.attention_norm, layer.mlp_norm)]
        self._weights = pass_loops.Weights(
            layers[0].qkv.kind,
            np.array([[p.addresses[0] for p in four] for four in products]),
            np.array([[p.addresses[1] for p in four] for four in products]),
            *(head.addresses if head else (0, 0)),
            np.stack([*norms, norm]),
            np.stack([layer.gain for layer in layers]),
            normed,
            np.float32(shape.eps),
            shape.intermediate,
            np.zeros(PANEL, np.float32),
        )
        self._size = sum(p.weights.size for four in products for p in four)
        self._room = _Room(shape, self._weights.kind)

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
        end = start + new + n
        assert len(cos) == new + n
        assert cache.shape[3] >= end
        buffers = self._room.rows(new, n)
        normed = buffers["normed"]
        if context is not None:
            normed[:new, :hidden] = context.numpy()
        seen = torch.ones(n, n, dtype=torch.bool).tril() if visible is None else visible
        asked = 0 if self._head is None else 1 if last_only else n
        logits = x.new_empty(asked, 0 if self._head is None else self._head.panels * PANEL)
        features = x.new_empty(n, len(taps) * hidden)
        attention = 2 * n * end * self._shape.heads * self._shape.head_dim * len(self._layers)
        threads = crew_size((new + n) * self._size + logits.numel() * hidden + attention)
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
                **buffers,
                **self._room.own(threads, end),
            ),
            threads,
        )
        out = logits
        if self._head is None:
            out = torch.from_numpy(normed[new:, :hidden].copy())
        elif self._head.outs < logits.shape[1]:
            out = logits[:, : self._head.outs].contiguous()
        return out, features if taps else None


def _line_up(products: Sequence[Panels]) -> None:
    """Move weights into one block of memory, in the order in which a pass reads them: what is
    fetched ahead at the end of a product is the beginning of the next."""
    block = room(sum(p.weights.nbytes for p in products), dtype=torch.int8)
    at = 0
    for p in products:
        place = block[at : at + p.weights.nbytes].view(p.weights.dtype).reshape(p.weights.shape)
        place[:] = p.weights
        p.weights = place
        at += place.nbytes


def _whole(width: int) -> int:
    """As wide as whole panels."""
    return -(-width // PANEL) * PANEL

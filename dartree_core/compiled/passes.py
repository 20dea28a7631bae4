"""Runs whole passes of a decoder over a few rows in compiled code."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dartree_core.compiled import pass_data as told
from dartree_core.compiled import pass_loops as loops
from dartree_core.compiled.arrays import Array, room
from dartree_core.compiled.openmp import MEETING
from dartree_core.compiled.products import Panels, code_width, crew_size, whole
from dartree_core.compiled.tiles import MOST, PANEL

_APART = 16
"""Floats by which rows that products read are longer than they need be: rows a power of two apart
fall onto the same lines of a cache."""


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
        """In the order of `pass_data.QKV` and what follows it."""
        return self.qkv, self.out, self.gate_up, self.down


@dataclass(frozen=True, slots=True)
class Context:
    """Makes rows of context, that are only attended to.

    Attributes:
        product: Maps what is known of a position to such a row.
        norm: `[H]`, weights of the norm behind it; its eps is the layers'.
    """

    product: Panels
    norm: Array


class Passed(NamedTuple):
    """What a pass found.

    Attributes:
        logits: float32 `[m, V]` of the last `m` rows, or None.
        rows: float32 `[n, H]`, final-normed rows, where wanted.
        features: float32 `[n, taps * H]`, tapped outputs side by side, or None.
        choice: int64 `[m]`, argmax of the logits, the first of equal ones, where wanted.
    """

    logits: Tensor | None
    rows: Tensor | None
    features: Tensor | None
    choice: Tensor | None


class _Room(threading.local):
    """Buffers of passes, a thread's own; see `pass_data.Rows`. They hold the longest pass so far,
    and every pass takes their first rows.

    Attributes:
        job: What a pass is told of its rows, the buffers' addresses filled in.
    """

    def __init__(self, shape: Shape, model: Array) -> None:
        heads, width = shape.heads, shape.head_dim
        self.job = np.zeros(told.ROWS, np.int64)
        self._head_dim = width
        self._widths = {
            told.GIVEN_CODES: int(model[told.GIVEN_CODES_WIDTH]),
            told.NORMED_ROWS: whole(shape.hidden) + _APART,
            told.QKV_ROWS: whole((heads + 2 * shape.kv_heads) * width),
            told.CODES: int(model[told.CODES_WIDTH]),
            told.QUERIES: heads * width,
            told.MIXED: heads * width + _APART,
            told.GATED: shape.intermediate + _APART,
            told.DELTA: whole(shape.hidden),
            told.GATE_UP_ROWS: whole(2 * shape.intermediate),
        }
        self._rows = self._threads = self._positions = 0
        self._held: dict[int, Array] = {told.PLACE: np.zeros(MEETING, np.int64)}
        self._tell()

    def fit(self, rows: int, end: int, threads: int) -> None:
        """Make room for so many rows, context included, and attention to `end` positions."""
        if rows > self._rows:
            self._rows = rows
            self._held |= {at: room(rows * width) for at, width in self._widths.items()}
            self._tell()
        if threads > self._threads or end > self._positions:
            self._threads = max(threads, self._threads)
            if end > self._positions:
                self._positions = whole(max(end, self._positions * 3 // 2))
            width = self._head_dim
            self._held |= {
                told.SCORES: room(self._threads, MOST, self._positions + _APART),
                told.BLOCK: room(self._threads, width, PANEL),
                told.ATTENDED: room(self._threads, MOST, width),
            }
            self._tell()

    def normed(self, rows: int) -> Array:
        """What products read of so many rows, `[rows, >= H]`."""
        width = self._widths[told.NORMED_ROWS]
        found: Array = self._held[told.NORMED_ROWS][: rows * width].reshape(rows, width)
        return found

    def _tell(self) -> None:
        self.job[told.POSITIONS] = self._positions
        for at, buffer in self._held.items():
            self.job[at] = buffer.ctypes.data


class CompiledPass:
    """Runs a decoder on a few rows of one sequence.

    Args:
        layers: Its layers, at least one; all products are of the same kind.
        norm: `[H]`, weights of the norm after the last.
        shape: Their sizes.
        normed: Whether queries and keys are normed.
        head: Maps normed rows to logits, or None.
        context: Makes rows of context; None where they are given.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        norm: Array,
        shape: Shape,
        *,
        normed: bool,
        head: Panels | None = None,
        context: Context | None = None,
    ) -> None:
        self._shape = shape
        self._head = head
        self._context = context
        self._layers = layers  # compiled code knows their weights by address
        sizes = [(p.outs, p.depth) for p in layers[0].products]
        inner, hidden, half = shape.heads * shape.head_dim, shape.hidden, shape.intermediate
        qkv = inner + 2 * shape.kv_heads * shape.head_dim
        wanted = [(qkv, hidden), (hidden, inner), (2 * half, hidden), (hidden, half)]
        assert sizes == wanted, f"{sizes} are not the products of {shape}"
        products = [layer.products for layer in layers]
        first, last = [context.product] if context else [], [head] if head else []
        _line_up([*first, *(p for four in products for p in four), *last])
        parts = [part for layer in layers for part in (layer.attention_norm, layer.mlp_norm)]
        kind = layers[0].qkv.kind
        self._arrays: dict[int, Array] = {
            told.WEIGHTS: np.array([[p.addresses[0] for p in four] for four in products]),
            told.TABLES: np.array([[p.addresses[1] for p in four] for four in products]),
            told.NORMS: np.stack([*parts, norm]),
            told.GAIN: np.stack([layer.gain for layer in layers]),
            told.NOTHING: np.zeros(PANEL, np.float32),
            told.CONTEXT_NORM: context.norm if context else norm,
        }
        facts = {
            told.KIND: kind,
            told.LAYERS: len(layers),
            told.HIDDEN: hidden,
            told.HEADS: shape.heads,
            told.GROUPS: shape.kv_heads,
            told.WIDTH: shape.head_dim,
            told.HALF: half,
            told.NORMED: int(normed),
            told.EPS: int(np.float32(shape.eps).view(np.int32)),
            told.CODES_WIDTH: code_width(kind, max(hidden, inner, half)),
            told.APART: _APART,
        }
        if head:
            facts[told.HEAD], facts[told.HEAD_TABLE] = head.addresses
            facts |= {told.HEAD_PANELS: head.panels, told.OUTS: head.outs}
        if context:
            made = context.product
            facts[told.CONTEXT], facts[told.CONTEXT_TABLE] = made.addresses
            facts |= {told.CONTEXT_KIND: made.kind, told.CONTEXT_WIDTH: made.depth}
            facts[told.GIVEN_CODES_WIDTH] = code_width(made.kind, made.depth)
        self._model = np.zeros(told.MODEL, np.int64)
        for at, number in facts.items():
            self._model[at] = number
        for at, array in self._arrays.items():
            assert array.flags.c_contiguous
            self._model[at] = array.ctypes.data
        self._size = sum(p.weights.size for four in products for p in four)
        self._room = _Room(shape, self._model)
        self._taps: dict[tuple[int, ...], Tensor] = {}

    @property
    def makes_context(self) -> bool:
        """True when rows of context are made by the pass."""
        return self._context is not None

    def __call__(
        self,
        x: Tensor,
        positions: Tensor,
        factors: tuple[Tensor, Tensor],
        cache: Tensor,
        start: int,
        *,
        context: Tensor | None = None,
        visible: Tensor | None = None,
        taps: Sequence[int] = (),
        asked: int | None = None,
        rows: bool = False,
        choice: bool = False,
    ) -> Passed:
        """One pass.

        Args:
            x: float32 `[n, H]`, embedded rows; written over.
            positions: int64 `[t + n]`, of context and rows.
            factors: Cosines and sines `[any, D]` by position, see `models.rope.tables`.
            cache: `[L, 2, kv_heads, capacity, D]`, keys and values; filled from `start` on.
            start: Rows there already.
            context: `[t, H]`, rows that are only attended to, the same in every layer, or what
                they are made from; or None.
            visible: bool `[n, n]`, which rows a row sees beside all before them; None for those
                up to itself.
            taps: Layers whose outputs are wanted.
            asked: How many of the last rows' logits are wanted; None for all.
            rows: Whether the normed rows are wanted.
            choice: Whether each row's largest logit is looked for.

        Raises:
            IndexError: A position has no factors.
        """
        n, hidden = x.shape
        new = 0 if context is None else len(context)
        end = start + new + n
        heads, inner = self._shape.kv_heads, self._shape.head_dim
        cos, sin = factors
        assert positions.shape == (new + n,)
        assert positions.dtype == torch.int64
        positions = positions.contiguous()
        assert cache.shape[3] >= end
        assert cache.shape == (len(self._layers), 2, heads, cache.shape[3], inner)
        assert cos.shape == sin.shape == (len(cos), inner)
        if visible is None:
            visible = torch.ones(n, n, dtype=torch.bool).tril()
        assert visible.shape == (n, n)
        assert visible.dtype == torch.bool
        visible = visible.contiguous()
        tapped = self._taps.get(tuple(taps))
        if tapped is None:
            tapped = self._taps[tuple(taps)] = torch.tensor(list(taps), dtype=torch.int64)
        count = 0 if self._head is None else n if asked is None else asked
        logits = x.new_empty(count, 0 if self._head is None else self._head.panels * PANEL)
        features = x.new_empty(n, len(taps) * hidden) if taps else None
        attention = 2 * n * end * self._shape.heads * inner * len(self._layers)
        threads = crew_size((new + n) * self._size + logits.numel() * hidden + attention)
        chosen = positions.new_zeros(1 + threads, count) if choice else None

        buffers = self._room
        buffers.fit(new + n, end, threads)
        job = buffers.job
        given = 0
        if context is not None and self._context is not None:
            assert context.shape[1] == self._context.product.depth
            context = context.contiguous()
            given = _at(context)
        elif context is not None:
            buffers.normed(new)[:, :hidden] = context.numpy()
        # In one go, in the order of `pass_data.COUNT` and what follows it.
        job[: told.POSITIONS] = (
            n,
            new,
            start,
            cache.shape[3],
            len(taps),
            count,
            chosen is not None,
            len(cos),
            _at(x),
            positions.data_ptr(),
            _at(cos),
            _at(sin),
            _at(cache),
            visible.data_ptr(),
            tapped.data_ptr(),
            0 if features is None else _at(features),
            _at(logits),
            0 if chosen is None else chosen.data_ptr(),
            given,
        )
        if not loops.run(self._model, job, threads):
            raise IndexError(f"a position is not within the {len(cos)} that have rotary factors")
        found = None
        if self._head is not None:
            full = self._head.outs == logits.shape[1]
            found = logits if full else logits[:, : self._head.outs].contiguous()
        return Passed(
            found,
            torch.from_numpy(buffers.normed(new + n)[new:, :hidden].copy()) if rows else None,
            features,
            None if chosen is None else chosen[0],
        )


def _at(x: Tensor) -> int:
    """The address of float32 numbers that lie one behind the other in this machine's memory."""
    assert x.dtype == torch.float32
    assert x.is_contiguous()
    assert x.device.type == "cpu"
    return x.data_ptr()


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

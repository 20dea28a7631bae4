"""Products of rows with weights laid out in panels, shared among PyTorch's threads."""

# Functions are compiled by Numba, not run by Python: types are Numba's.
# mypy: ignore-errors

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numba import typeof, types
from numba.extending import register_jitable
from torch import Tensor

from dartree_core.compiled import cpu, openmp
from dartree_core.compiled.arrays import Array, room
from dartree_core.compiled.jit import entry, helper
from dartree_core.compiled.maths import ZERO, magnitude
from dartree_core.compiled.tiles import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    INT8,
    LEVELS,
    PANEL,
    SHARED,
    TABLES,
    tiles,
)

_KINDS = {
    torch.float16: FLOAT16,
    torch.float32: FLOAT32,
    torch.int8: INT8,
    torch.bfloat16: BFLOAT16,
}
CODED = (INT8, BFLOAT16)
"""Kinds of weights that rows are rounded for."""
_LEVELS = np.float32(127)
_MIDDLE = np.float32(128)
_HALF = np.float32(0.5)
_WORTH_SHARING = 1 << 19
"""Multiplications from which threads beside the caller's are worth waking."""


class Job(NamedTuple):
    """A product.

    Attributes:
        kind: Of the weights.
        x: `[n, in]`.
        weights, table: Addresses.
        out: `[n, panels * 32]`, filled.
        codes: `[n, code_width(kind, in)]`, where rows are written by `encode` for `CODED` kinds.
        place: Where threads meet, see `openmp.meet`.
    """

    kind: int
    x: Array
    weights: int
    table: int
    out: Array
    codes: Array
    place: Array


@register_jitable
def whole(width: int) -> int:
    """As wide as whole panels; for Python, too."""
    return (width + PANEL - 1) // PANEL * PANEL


@helper
def share(count, thread, threads):
    """First of a thread's share of so many, and the first that is not."""
    return count * thread // threads, count * (thread + 1) // threads


@helper
def encode(kind, x, codes):
    """A row as bfloat16, or as bytes 128 too large and behind them its scale; see `tiles.tile`."""
    if kind == BFLOAT16:
        found, bits = codes.view(np.uint16), x.view(np.uint32)
        for j in range(len(x)):
            even = (bits[j] >> np.uint32(16)) & np.uint32(1)
            found[j] = np.uint16((bits[j] + np.uint32(0x7FFF) + even) >> np.uint32(16))
        if len(x) % 2:
            found[len(x)] = np.uint16(0)
        return
    top = magnitude(x)
    scale = top / _LEVELS if top > ZERO else np.float32(1)
    factor = np.float32(1) / scale
    levels = codes.view(np.uint8)
    for j in range(len(x)):
        levels[j] = np.uint8(np.int32(x[j] * factor + _MIDDLE + _HALF))
    codes[len(codes) - 1] = scale


@helper
def product(kind, x, codes, depth, weights, table, out, first, last):
    """Panels from `first` to before `last`.

    Args:
        kind: Of the weights.
        x: `[n, >= depth]`.
        codes: The same rows by `encode`, for `CODED` kinds.
        depth: Inputs.
        weights, table: Addresses, see `tiles.tile`.
        out: `[n, >= last * 32]`.
        first, last: See above.
    """
    out_step = out.shape[1] * 4
    if kind in CODED:
        shared = SHARED[kind]
        at, step, steps = codes.ctypes.data, codes.shape[1] * 4, (depth + shared - 1) // shared
    else:
        at, step, steps = x.ctypes.data, x.shape[1] * 4, depth
    tiles(kind, len(x), at, step, weights, steps, table, out.ctypes.data, out_step, first, last)


def _part(job):
    thread, threads = openmp.thread(), openmp.threads()
    if job.kind in CODED:
        for i in range(thread, len(job.x), threads):
            encode(job.kind, job.x[i], job.codes[i])
        openmp.meet(job.place, threads)
    first, last = share(job.out.shape[1] // PANEL, thread, threads)
    depth = job.x.shape[1]
    product(job.kind, job.x, job.codes, depth, job.weights, job.table, job.out, first, last)


_together = openmp.crew(_part)
_ROWS = np.zeros((1, 1), np.float32)


@entry(typeof(Job(0, _ROWS, 0, 0, _ROWS, _ROWS, np.zeros(1, np.int64))), types.int64)
def _run(job, threads):
    """Compute a product with so many threads."""
    _together(job, threads)


def crew_size(work: int) -> int:
    """Threads for so many multiplications."""
    return torch.get_num_threads() if work > _WORTH_SHARING else 1


def code_width(kind: int, depth: int) -> int:
    """Float32 that a coded row takes, with its scale."""
    return -(-depth // SHARED[kind]) + 1 if kind in CODED else 0


class Panels:
    """A linear map of float32 rows, its weights in panels of 32 outputs.

    Args:
        weight: `[out, in]`.
        bias: `[out]`, or None.
        dtype: Of the weights kept: float16 or float32; bfloat16, where rows are rounded to it as
            well; or int8 with a scale per output and per row.

    Raises:
        ValueError: This CPU has no such products.

    Attributes:
        kind: Of the weights, see `tiles`.
        outs, depth: Its sizes.
        panels: How many there are; the last may be filled up with zeros.
        weights, table: See `tiles.tile`.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        self.kind: int = _KINDS[dtype]
        can = {INT8: cpu.multiplies_int8, BFLOAT16: cpu.multiplies_bfloat16}
        if not can.get(self.kind, lambda: True)():
            raise ValueError(f"this CPU has no instruction for products of {dtype}")
        self.outs, self.depth = weight.shape
        self.panels = -(-self.outs // PANEL)
        self.table: Array = np.zeros((self.panels, TABLES[self.kind], PANEL), np.float32)
        if bias is not None:
            self._fill(0, bias.detach().float().numpy())
        levels = weight.detach().float().numpy()
        if self.kind == BFLOAT16:  # NumPy has no name for it
            levels = weight.detach().bfloat16().view(torch.uint16).numpy()
        if self.kind == INT8:
            scales = np.maximum(np.abs(levels).max(axis=1), np.float32(1e-12)) / np.float32(LEVELS)
            levels = np.rint(levels / scales[:, None]).astype(np.int8)
            self._fill(1, scales)
            excess = 128 * levels.sum(axis=1, dtype=np.int32)
            self._fill(2, excess.view(np.float32))
        shared = SHARED[self.kind]
        steps = -(-self.depth // shared)
        self.weights: Array = room(self.panels, steps, PANEL, shared, dtype=dtype)
        padded = np.zeros((self.panels * PANEL, steps * shared), self.weights.dtype)
        padded[: self.outs, : self.depth] = levels
        by_panel = padded.reshape(self.panels, PANEL, steps, shared)
        self.weights[:] = by_panel.transpose(0, 2, 1, 3)

    @property
    def addresses(self) -> tuple[int, int]:
        """Of weights and table, for compiled code; they hold as long as this object lives."""
        return self.weights.ctypes.data, self.table.ctypes.data

    def __call__(self, x: Tensor) -> Tensor:
        """float32 `[..., in]` to `[..., out]`."""
        given = x.reshape(-1, self.depth).contiguous()
        rows, width = len(given), self.panels * PANEL
        out = given.new_empty(rows, width)
        codes = np.empty((rows, code_width(self.kind, self.depth)), np.float32)
        place = np.zeros(openmp.MEETING, np.int64)
        job = Job(self.kind, given.numpy(), *self.addresses, out.numpy(), codes, place)
        _run(job, crew_size(rows * width * self.depth))
        out = out if width == self.outs else out[:, : self.outs].contiguous()
        return out.view(*x.shape[:-1], self.outs)

    def _fill(self, row: int, values: Array) -> None:
        """Write a row of the tables of all panels."""
        padded = np.zeros(self.panels * PANEL, np.float32)
        padded[: self.outs] = values
        self.table[:, row] = padded.reshape(self.panels, PANEL)

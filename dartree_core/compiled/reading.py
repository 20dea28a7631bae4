"""What the target made of a tree, in one call."""

# Functions are compiled by Numba, not run by Python: types are Numba's.
# mypy: ignore-errors

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import types

from dartree_core.compiled.arrays import Array
from dartree_core.compiled.jit import entry, helper
from dartree_core.compiled.maths import ZERO, exp, largest

_BLOCK = 4096
"""Logits that are read once, into the innermost cache, for all that is asked of them."""
ARGUMENTS = (
    types.float32[:, ::1],
    types.int64[::1],
    types.int64[::1],
    types.float32[::1],
    types.int64[::1],
)


class Reading(NamedTuple):
    """Blocks of rows, and what was found in each.

    Attributes:
        logits, parent, token: See `read_targets`.
        first: int64 `[n + 2]`: row `r` has the children `child[first[r] : first[r + 1]]`.
        child: int64 `[n]`.
        read: int64 `[rows]`, rows with children.
        top: float32 `[n + 1, blocks]`, filled with the largest logit.
        total: float32 `[n + 1, blocks]`, filled with the sum of exponentials below it.
        above: int64 `[n + 1, blocks]`, filled with how many of the parent's exceed a token's.
    """

    logits: Array
    parent: Array
    token: Array
    first: Array
    child: Array
    read: Array
    top: Array
    total: Array
    above: Array


@helper
def begin(logits, parent, token):
    """A `Reading` of nothing yet."""
    count = len(parent)
    first, child = np.zeros(count + 1, np.int64), np.empty(count, np.int64)
    for i in range(1, count):
        first[parent[i] + 1] += 1
    rows = 0
    read = np.empty(count, np.int64)
    for row in range(count):
        if first[row + 1]:
            read[rows] = row
            rows += 1
        first[row + 1] += first[row]
    ends = first.copy()
    for i in range(1, count):
        child[ends[parent[i]]] = i
        ends[parent[i]] += 1
    shape = (count, (logits.shape[1] + _BLOCK - 1) // _BLOCK)
    top, total = np.empty(shape, np.float32), np.empty(shape, np.float32)
    above = np.empty(shape, np.int64)
    return Reading(logits, parent, token, first, child, read[:rows], top, total, above)


@helper
def read(reading, thread, threads):
    """Read a thread's share of the blocks."""
    blocks = reading.top.shape[1]
    count = len(reading.read) * blocks
    for at in range(count * thread // threads, count * (thread + 1) // threads):
        row, block = reading.read[at // blocks], at % blocks
        logits = reading.logits[row]
        values = logits[block * _BLOCK : (block + 1) * _BLOCK]
        top = largest(values)
        total = ZERO
        if top > -np.inf:
            for j in range(len(values)):
                total += exp(values[j] - top)
        reading.top[row, block], reading.total[row, block] = top, total
        for i in reading.child[reading.first[row] : reading.first[row + 1]]:
            own, above = logits[reading.token[i]], np.int32(0)
            for j in range(len(values)):
                above += np.int32(values[j] > own)
            reading.above[i, block] = above


@helper
def end(reading, logp, rank):
    """Put together what was found in blocks, the same whoever read them."""
    logp[0], rank[0] = ZERO, 0
    for row in reading.read:
        top = largest(reading.top[row])
        total = ZERO
        for block in range(reading.top.shape[1]):
            total += reading.total[row, block] * exp(reading.top[row, block] - top)
        norm = top + np.float32(math.log(total))
        for i in reading.child[reading.first[row] : reading.first[row + 1]]:
            logp[i] = reading.logits[row, reading.token[i]] - norm
            rank[i] = reading.above[i].sum() + 1


@entry(*ARGUMENTS, types.int64)
def read_targets(logits, parent, token, logp, rank, threads):
    """What the target made of the rows it scored.

    Args:
        logits: float32 `[n + 1, V]`.
        parent: int64 `[n + 1]`, rows; the first row has none.
        token: int64 `[n + 1]`.
        logp: float32 `[n + 1]`, filled with each token's log-probability in its parent's row, 0
            for the first.
        rank: int64 `[n + 1]`, filled with its rank there, from 1; 0 for the first.
        threads: Not asked here: the caller's does it all. See `shared_reading`.
    """
    reading = begin(logits, parent, token)
    read(reading, 0, 1)
    end(reading, logp, rank)

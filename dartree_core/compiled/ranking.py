"""Which candidates and nodes are the best, for compiled loops. NaN never is."""

# Functions are compiled by Numba, not run by Python: types are Numba's.
# mypy: ignore-errors

from __future__ import annotations

import numpy as np

from dartree_core.compiled.jit import helper

_AT_ONCE = 64
"""Values that are compared in one go, most of them in vain."""


@helper
def leading(values, heap, where):
    """The `len(heap)` largest of `values` in descending order, and their places."""
    count = len(heap)
    for i in range(count):
        heap[i], where[i] = values[i], i
    for i in range(count // 2 - 1, -1, -1):
        _sink(heap, where, i, count)
    for begin in range(count, len(values), _AT_ONCE):
        block = values[begin : begin + _AT_ONCE]
        above, least = np.int32(0), heap[0]
        for i in range(len(block)):
            above += np.int32(block[i] > least)
        if above == 0:
            continue
        for i in range(len(block)):
            if block[i] > heap[0]:
                heap[0], where[0] = block[i], begin + i
                _sink(heap, where, 0, count)
    for end in range(count - 1, 0, -1):
        heap[0], heap[end] = heap[end], heap[0]
        where[0], where[end] = where[end], where[0]
        _sink(heap, where, 0, end)


@helper
def first_largest(values):
    """Where the largest value is, the first of equal ones."""
    found, top = 0, np.float32(-np.inf)
    for begin in range(0, len(values), _AT_ONCE):
        block = values[begin : begin + _AT_ONCE]
        above = np.int32(0)
        for i in range(len(block)):
            above += np.int32(block[i] > top)
        if above == 0:
            continue
        for i in range(len(block)):
            if block[i] > top:
                found, top = begin + i, block[i]
    return found


@helper
def _sink(heap, where, i, end):
    """Restore a heap, its smallest value first, whose entry `i` may be too large."""
    while True:
        child = 2 * i + 1
        if child >= end:
            return
        if child + 1 < end and heap[child + 1] < heap[child]:
            child += 1
        if not heap[child] < heap[i]:
            return
        heap[i], heap[child] = heap[child], heap[i]
        where[i], where[child] = where[child], where[i]
        i = child


@helper
def select(total, used, count, branch, parents, children, values):
    """The `count` best entries of `total[F, C]` in descending order, `branch` a row at most."""
    rows = len(total)
    best = np.empty(rows, np.int64)
    taken = np.zeros(rows, np.int64)
    for row in range(rows):
        for column in range(used.shape[1]):
            used[row, column] = False
        best[row] = _best(total[row], used[row])
    for n in range(count):
        chosen = -1
        for row in range(rows):
            if best[row] >= 0 and (
                chosen < 0 or total[row, best[row]] > total[chosen, best[chosen]]
            ):
                chosen = row
        column = best[chosen]
        parents[n], children[n], values[n] = chosen, column, total[chosen, column]
        used[chosen, column] = True
        taken[chosen] += 1
        best[chosen] = -1 if taken[chosen] == branch else _best(total[chosen], used[chosen])


@helper
def _best(values, used):
    """Where the largest unused value is; -1 when all are used."""
    found = -1
    for i in range(len(values)):
        if not used[i] and (found < 0 or values[i] > values[found]):
            found = i
    return found


@helper
def merge(best, filled, values, lift):
    """Add `values + lift` to the best so far, in descending order; how many there are."""
    for i in range(len(values)):
        key = values[i] + lift
        at = filled if filled < len(best) else filled - 1
        if filled == len(best) and not key > best[at]:
            continue
        while at > 0 and best[at - 1] < key:
            best[at] = best[at - 1]
            at -= 1
        best[at] = key
        filled = min(filled + 1, len(best))
    return filled


@helper
def best_nodes(path_logp, depth, keep, bonus):
    """Ascending ids of the root and the `keep` nodes with the largest keys; of equal ones those
    with the lower ids, and NaN counts as the worst."""
    count = len(depth)
    keys = np.empty(count, np.float32)
    for i in range(count):
        key = path_logp[i] + bonus * np.float32(depth[i])
        keys[i] = key if key == key else -np.inf
    kept = np.zeros(min(keep + 1, count), np.int64)
    filled = 1
    for i in range(1, count):
        better = 0
        for j in range(1, i):
            better += keys[j] >= keys[i]
        for j in range(i + 1, count):
            better += keys[j] > keys[i]
        if better < keep:
            kept[filled] = i
            filled += 1
    return kept

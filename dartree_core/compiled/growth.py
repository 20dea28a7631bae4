"""Growing a whole tree in one call, for a Domino head on a CPU.

What takes a tree's levels so long as tensor operations is not the arithmetic but hundreds of calls
of microseconds each. Semantics are those of `dartree_core.draft.builders.dartree` with
`heads.lean_domino`, which stay the oracle in tests.
"""

# Functions are compiled by Numba, not run by Python: types are Numba's.
# mypy: ignore-errors

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import typeof, types

from dartree_core.compiled.arrays import Array
from dartree_core.compiled.jit import entry, helper
from dartree_core.compiled.maths import ONE, ZERO, exp, log_total, sigmoid

_ROW, _ROWS = types.float32[::1], types.float32[:, ::1]
_INDICES, _TABLE = types.int64[::1], types.int64[:, ::1]
_TWO = np.float32(2)


@helper
def _product(x, rows, weight, bias, out):
    """`out[i] = weight @ x[i] + bias` for `rows` rows, rounded up to a multiple of four.

    Four rows share a weight that was read, two weights share a row's element, and all rows pass
    before the next weights do: those of a tree's states come from the last level of cache.
    """
    outs, width = weight.shape
    for o in range(0, outs - 1, 2):
        for i in range(0, rows, 4):
            a0 = a1 = a2 = a3 = bias[o]
            b0 = b1 = b2 = b3 = bias[o + 1]
            for k in range(width):
                u, v = weight[o, k], weight[o + 1, k]
                p, q, r, s = x[i, k], x[i + 1, k], x[i + 2, k], x[i + 3, k]
                a0 += u * p
                a1 += u * q
                a2 += u * r
                a3 += u * s
                b0 += v * p
                b1 += v * q
                b2 += v * r
                b3 += v * s
            out[i, o], out[i, o + 1] = a0, b0
            out[i + 1, o], out[i + 1, o + 1] = a1, b1
            out[i + 2, o], out[i + 2, o + 1] = a2, b2
            out[i + 3, o], out[i + 3, o + 1] = a3, b3
    if outs % 2:
        for i in range(rows):
            total = bias[outs - 1]
            for k in range(width):
                total += weight[outs - 1, k] * x[i, k]
            out[i, outs - 1] = total


@helper
def _largest(values, heap, where):
    """The `len(heap)` largest of `values` in descending order, and their places."""
    count = len(heap)
    for i in range(count):
        heap[i], where[i] = values[i], i
    for i in range(count // 2 - 1, -1, -1):
        _sink(heap, where, i, count)
    for i in range(count, len(values)):
        if values[i] > heap[0]:
            heap[0], where[0] = values[i], i
            _sink(heap, where, 0, count)
    for end in range(count - 1, 0, -1):
        heap[0], heap[end] = heap[end], heap[0]
        where[0], where[end] = where[end], where[0]
        _sink(heap, where, 0, end)


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
def _next_state(given, held, before, after):
    """One step of a GRU: products with the token and with the state `[3G]`, states `[G]`."""
    width = len(after)
    for i in range(width):
        reset = sigmoid(given[i] + held[i])
        update = sigmoid(given[width + i] + held[width + i])
        fresh = given[2 * width + i] + reset * held[2 * width + i]
        fresh = ONE - _TWO / (exp(_TWO * fresh) + ONE)
        after[i] = fresh + update * (before[i] - fresh)


@helper
def _select(total, used, count, branch, parents, children, values):
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
def _merge(best, filled, values, lift):
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
def _best_nodes(path_logp, depth, keep, bonus):
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


class Head(NamedTuple):
    """A Domino head's weights, float32 and contiguous; G the state's width, E the embedding's.

    Attributes:
        inputs: `[Vd, 3G]`, products of all draft tokens with the GRU's input weights.
        of_state: `[3G + E, G]`, what a state is multiplied with: the GRU's weights, and the
            state's half of the correction's first layer.
        of_state_bias: `[3G + E]`.
        of_slot, of_slot_bias: `[E, H]` and `[E]`, the slot's half of that layer.
        last, last_bias: `[Vd, E]` and `[Vd]`, the correction's last layer.
        ids: int64 `[Vd]`, target ids of the drafter's rows.
        prefix_len: First slots that stay uncorrected.
    """

    inputs: Array
    of_state: Array
    of_state_bias: Array
    of_slot: Array
    of_slot_bias: Array
    last: Array
    last_bias: Array
    ids: Array
    prefix_len: int


class Limits(NamedTuple):
    """How large a tree may get.

    Attributes:
        depths: Levels.
        size: Candidates of a slot.
        branch: Children of a node.
        width: Nodes of a level; of a tree, where `spread`.
        spread: Spend `width` nodes evenly over the levels, and prune nothing.
        keep: Nodes of a tree that are to be verified, the best by key.
        enough: Stop once so many nodes are better than anything deeper could be; 0 for never.
        bonus: Added per depth to path scores, which makes the keys.
    """

    depths: int
    size: int
    branch: int
    width: int
    spread: bool
    keep: int
    enough: int
    bonus: np.float32


_HEAD = Head(
    *(np.zeros((1,) * dims, np.float32) for dims in (2, 2, 1, 2, 1, 2, 1)), np.zeros(1, np.int64), 0
)
_LIMITS = Limits(0, 0, 0, 0, False, 0, 0, np.float32(0))


class Grown(NamedTuple):
    """A supertree's columns, see `dartree_core.draft.supertree`; entry 0 is the root, its token
    left out. `candidates` is int64 `[levels, size]`."""

    token: Array
    parent: Array
    depth: Array
    draft_logp: Array
    head_logp: Array
    path_logp: Array
    draft_rank: Array
    head_rank: Array
    kept: Array
    candidates: Array


@entry(_ROWS, _ROWS, types.float32, _ROW, typeof(_HEAD), typeof(_LIMITS))
def grow(logits, hidden, scale, given, head, limits):
    """A whole supertree.

    Args:
        logits: float32 `[K, Vd]`, marginal logits.
        hidden: float32 `[K, H]`, the slots' hidden states.
        scale: float32, of corrections.
        given: float32 `[3G]`, the root's product with the GRU's input weights.
        head: See `Head`.
        limits: See `Limits`.
    """
    depths, size, width = limits.depths, limits.size, limits.width
    most = width if limits.spread else width * depths
    token = np.zeros(most + 1, np.int64)
    parent = np.full(most + 1, -1)
    depth = np.zeros(most + 1, np.int64)
    draft_rank, head_rank = np.zeros(most + 1, np.int64), np.zeros(most + 1, np.int64)
    draft_logp, head_logp = np.zeros(most + 1, np.float32), np.zeros(most + 1, np.float32)
    path_logp = np.zeros(most + 1, np.float32)
    rows, candidates = np.empty((depths, size), np.int64), np.empty((depths, size), np.int64)

    padded = (width + 3) // 4 * 4
    gates, mix = head.inputs.shape[1], len(head.of_slot)
    slots = np.zeros(((depths + 3) // 4 * 4, hidden.shape[1]), np.float32)
    for slot in range(depths):
        for h in range(hidden.shape[1]):
            slots[slot, h] = hidden[slot, h]
    shared = np.empty((len(slots), mix), np.float32)
    _product(slots, depths, head.of_slot, head.of_slot_bias, shared)

    states, fresh = (
        np.zeros((padded, gates // 3), np.float32),
        np.zeros((padded, gates // 3), np.float32),
    )
    carried = np.empty((padded, gates + mix), np.float32)
    mixed = np.zeros((padded, mix), np.float32)
    last, last_bias = np.empty((size, mix), np.float32), np.empty(size, np.float32)
    scores, total = np.empty((padded, size), np.float32), np.empty((padded, size), np.float32)
    used = np.empty((padded, size), np.bool_)
    base, marginal = np.empty(size, np.float32), np.empty(size, np.float32)
    picked, chosen = np.empty(width, np.int64), np.empty(width, np.int64)
    values = np.empty(width, np.float32)
    best, filled = np.empty(max(limits.enough, 1), np.float32), 0

    # Nothing before the root enters: `fresh` is zero still.
    _next_state(given, head.of_state_bias[:gates], fresh[0], states[0])
    frontier, above, nodes = 1, 0, 0
    levels = 0
    for slot in range(depths):
        count = -((nodes - width) // (depths - slot)) if limits.spread else width
        count = min(count, frontier * limits.branch)
        if count <= 0:
            break
        levels = slot + 1
        _product(states, frontier, head.of_state, head.of_state_bias, carried)
        _largest(logits[slot], base, rows[slot])
        corrected = slot >= head.prefix_len
        columns = size if corrected else limits.branch
        norm = log_total(base if corrected else logits[slot])
        for c in range(size):
            row = rows[slot, c]
            candidates[slot, c] = head.ids[row]
            marginal[c] = base[c] - norm if corrected else min(base[c] - norm, ZERO)
            last_bias[c] = head.last_bias[row]
            for e in range(mix):
                last[c, e] = head.last[row, e]
        if corrected:
            for f in range(frontier):
                for e in range(mix):
                    x = shared[slot, e] + carried[f, gates + e]
                    mixed[f, e] = x * sigmoid(x)
            _product(mixed, frontier, last, last_bias, scores)
        for f in range(frontier):
            if corrected:
                for c in range(size):
                    scores[f, c] = base[c] + scale * scores[f, c]
                norm = log_total(scores[f])
                for c in range(size):
                    # Rounding may end just above 0, and a child would pass its parent.
                    scores[f, c] = min(scores[f, c] - norm, ZERO)
            else:
                for c in range(columns):
                    scores[f, c] = marginal[c]
            for c in range(columns):
                total[f, c] = path_logp[above + f] + scores[f, c]
        _select(
            total[:frontier, :columns],
            used[:frontier, :columns],
            count,
            limits.branch,
            picked,
            chosen,
            values,
        )
        for n in range(count):
            node, f, c = nodes + 1 + n, picked[n], chosen[n]
            token[node], depth[node] = candidates[slot, c], slot + 1
            parent[node], path_logp[node] = above + f, values[n]
            draft_logp[node], draft_rank[node] = marginal[c], c + 1
            head_logp[node] = scores[f, c]
            better = 0
            for other in range(columns):
                better += scores[f, other] > scores[f, c]
            head_rank[node] = better + 1
        above, frontier, nodes = nodes + 1, count, nodes + count
        if limits.enough:
            lift = limits.bonus * np.float32(slot + 1)
            filled = _merge(best, filled, values[:count], lift)
            if filled == limits.enough:
                # Best first, so those from which anything can come lead the level. NaN compares
                # false: what overflowed is grown to its end.
                while frontier > 0 and values[frontier - 1] + lift <= best[filled - 1]:
                    frontier -= 1
        for n in range(frontier if slot + 1 < depths else 0):
            given = head.inputs[rows[slot, chosen[n]]]
            _next_state(given, carried[picked[n], :gates], states[picked[n]], fresh[n])
        states, fresh = fresh, states
    end = nodes + 1
    return Grown(
        token[:end],
        parent[:end],
        depth[:end],
        draft_logp[:end],
        head_logp[:end],
        path_logp[:end],
        draft_rank[:end],
        head_rank[:end],
        _best_nodes(path_logp[:end], depth[:end], limits.keep, limits.bonus),
        candidates[:levels],
    )


@entry(
    _ROWS, _ROWS, types.float32, _ROWS, _INDICES, types.int64[:, ::1], types.int64, typeof(_HEAD)
)
def follow(logits, hidden, scale, given, path, rivals, first, head):
    """Log-probabilities of a path's tokens as `grow` would have scored them.

    Args:
        logits, hidden, scale, head: See `grow`.
        given: float32 `[m, 3G]`, the products of the root and the path's first tokens with the
            GRU's input weights.
        path: int64 `[m]`, rows of the path's tokens; -1 for one that cannot be drafted.
        rivals: int64 `[m, size]`, rows of the slots' candidates, which a token joins if it is not
            one; -1 behind their end.
        first: Slot of the first token asked for.

    Returns:
        float32 `[m - first, 2]`: given the path, and by the marginals; minus infinity for tokens
        that cannot be drafted.
    """
    asked, gates, mix = len(path), head.inputs.shape[1], len(head.of_slot)
    out = np.full((asked - first, 2), np.float32(-np.inf))
    slots = np.zeros(((asked + 3) // 4 * 4, hidden.shape[1]), np.float32)
    slots[:asked] = hidden[:asked]
    shared = np.empty((len(slots), mix), np.float32)
    _product(slots, asked, head.of_slot, head.of_slot_bias, shared)
    states = np.zeros((4, gates // 3), np.float32)
    fresh = np.zeros(gates // 3, np.float32)
    carried = np.empty((4, gates + mix), np.float32)
    mixed = np.empty(mix, np.float32)
    both = np.empty((2, rivals.shape[1] + 1), np.float32)
    _next_state(given[0], head.of_state_bias[:gates], fresh, states[0])
    for slot in range(asked):
        _product(states, 1, head.of_state, head.of_state_bias, carried)
        token = path[slot]
        if slot >= first and token >= 0:
            if slot < head.prefix_len:
                out[slot - first, :] = min(logits[slot, token] - log_total(logits[slot]), ZERO)
            else:
                for e in range(mix):
                    x = shared[slot, e] + carried[0, gates + e]
                    mixed[e] = x * sigmoid(x)
                count = 0
                for c in range(-1, rivals.shape[1]):
                    row = token if c < 0 else rivals[slot, c]
                    if row < 0 or (c >= 0 and row == token):
                        continue
                    total = head.last_bias[row]
                    for e in range(mix):
                        total += head.last[row, e] * mixed[e]
                    both[0, count] = logits[slot, row] + scale * total
                    both[1, count] = logits[slot, row]
                    count += 1
                for kind in range(2):
                    norm = log_total(both[kind, :count])
                    out[slot - first, kind] = min(both[kind, 0] - norm, ZERO)
        if slot + 1 < asked:
            _next_state(given[slot + 1], carried[0, :gates], states[0], fresh)
            states[0, :] = fresh
    return out

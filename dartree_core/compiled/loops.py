"""Loops that Numba compiles for the CPU: growing a tree, and what lies between products.

What takes a tree's levels, or a layer, so long as tensor operations is not the arithmetic but a
hundred calls of microseconds each. Here a whole tree is one call, and so is all that a layer does
between two products. Semantics are those of `dartree_core.draft.builders.dartree` with
`heads.lean_domino`, and of `dartree_core.models.lean`, which stay the oracle in tests.

All compiled code is in this one file because a compilation is cached with the file of the
function that was called: a change elsewhere would not be noticed.
"""

# Functions are compiled by Numba, not run by Python: types are Numba's.
# mypy: ignore-errors

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, typeof, types
from numba.extending import intrinsic

from dartree_core.compiled.arrays import Array

_MATH = {"contract", "reassoc", "arcp", "nsz"}
"""Liberties taken with rounding. Infinities and NaN keep their meaning: noise and overflow bring
both."""
_helper = njit(fastmath=_MATH, error_model="numpy", nogil=True)
"""For functions called from compiled code."""


def _entry(*signature):
    """For functions called from Python, compiled at once, or loaded from where they were kept."""

    def compiled(function):
        options = {"fastmath": _MATH, "error_model": "numpy", "nogil": True}
        try:
            return njit([signature], cache=True, **options)(function)
        except RuntimeError:  # neither beside this file nor in the user's cache can be written
            return njit([signature], **options)(function)

    return compiled


_INT, _FLOAT, _BOOL = types.int64, types.float32, types.boolean
_INDICES = types.int64[::1]
_ROW, _ROWS, _HEADS = types.float32[::1], types.float32[:, ::1], types.float32[:, :, ::1]

_f = np.float32
_ZERO, _HALF, _ONE, _TWO = _f(0), _f(0.5), _f(1), _f(2)
_LEAST, _MOST = _f(-87.0), _f(88.0)
_LOG2_E = _f(math.log2(math.e))
# ln 2 in two parts, the first with so few bits that its multiples are exact.
_LN2_HIGH = _f(math.ldexp(round(math.ldexp(math.log(2), 12)), -12))
_LN2_LOW = _f(math.log(2) - float(_LN2_HIGH))
_C2, _C3, _C4, _C5, _C6, _C7 = (_f(1 / math.factorial(i)) for i in range(2, 8))


@intrinsic
def _with_bits(typing_context, bits):
    """The float32 whose bits are an int32's."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


@_helper
def _exp(x):
    """e**x of a float32, within 2e-7 of it, by operations that vectorise; 1.6e-38 below -87."""
    x = min(max(x, _LEAST), _MOST)
    power = np.floor(x * _LOG2_E + _HALF)
    r = x - power * _LN2_HIGH - power * _LN2_LOW
    p = _C7
    p = p * r + _C6
    p = p * r + _C5
    p = p * r + _C4
    p = p * r + _C3
    p = p * r + _C2
    p = p * r + _ONE
    p = p * r + _ONE
    return p * _with_bits((np.int32(power) + np.int32(127)) << np.int32(23))


@_helper
def _sigmoid(x):
    return _ONE / (_ONE + _exp(-x))


@_helper
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


@_helper
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


@_helper
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


@_helper
def _top(values):
    """The largest value. NaN keeps the compiler from rearranging a running maximum, so each of
    many lanes has one of its own."""
    lanes = np.full(64, -np.inf, np.float32)
    whole = len(values) // 64 * 64
    for i in range(0, whole, 64):
        for j in range(64):
            lanes[j] = values[i + j] if values[i + j] > lanes[j] else lanes[j]
    for i in range(whole, len(values)):
        lanes[0] = values[i] if values[i] > lanes[0] else lanes[0]
    top = lanes[0]
    for j in range(1, 64):
        top = lanes[j] if lanes[j] > top else top
    return top


@_helper
def _log_total(values):
    """Log of the sum of exponentials."""
    top = _top(values)
    if top == -np.inf:
        return top
    total = _ZERO
    for i in range(len(values)):
        total += _exp(values[i] - top)
    return top + np.float32(math.log(total))


@_helper
def _next_state(given, held, before, after):
    """One step of a GRU: products with the token and with the state `[3G]`, states `[G]`."""
    width = len(after)
    for i in range(width):
        reset = _sigmoid(given[i] + held[i])
        update = _sigmoid(given[width + i] + held[width + i])
        fresh = given[2 * width + i] + reset * held[2 * width + i]
        fresh = _ONE - _TWO / (_exp(_TWO * fresh) + _ONE)
        after[i] = fresh + update * (before[i] - fresh)


@_helper
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


@_helper
def _best(values, used):
    """Where the largest unused value is; -1 when all are used."""
    found = -1
    for i in range(len(values)):
        if not used[i] and (found < 0 or values[i] > values[found]):
            found = i
    return found


@_helper
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


@_helper
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


@_entry(_ROWS, _ROWS, _FLOAT, _ROW, typeof(_HEAD), typeof(_LIMITS))
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
        norm = _log_total(base if corrected else logits[slot])
        for c in range(size):
            row = rows[slot, c]
            candidates[slot, c] = head.ids[row]
            marginal[c] = base[c] - norm if corrected else min(base[c] - norm, _ZERO)
            last_bias[c] = head.last_bias[row]
            for e in range(mix):
                last[c, e] = head.last[row, e]
        if corrected:
            for f in range(frontier):
                for e in range(mix):
                    x = shared[slot, e] + carried[f, gates + e]
                    mixed[f, e] = x * _sigmoid(x)
            _product(mixed, frontier, last, last_bias, scores)
        for f in range(frontier):
            if corrected:
                for c in range(size):
                    scores[f, c] = base[c] + scale * scores[f, c]
                norm = _log_total(scores[f])
                for c in range(size):
                    # Rounding may end just above 0, and a child would pass its parent.
                    scores[f, c] = min(scores[f, c] - norm, _ZERO)
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


@_helper
def _root_mean(x, eps):
    """Root of the mean square of a row, `eps` added under it."""
    total = _ZERO
    for i in range(len(x)):
        total += x[i] * x[i]
    return math.sqrt(total / np.float32(len(x)) + eps)


@_entry(_ROWS, _ROW, _FLOAT, _ROWS)
def norm(x, weight, eps, out):
    """`out = rms_norm(x) * weight`, rows `[n, H]`."""
    for i in range(len(x)):
        scale = _ONE / _root_mean(x[i], eps)
        for j in range(x.shape[1]):
            out[i, j] = x[i, j] * scale * weight[j]


@_entry(_ROWS, _ROWS, _ROW, _FLOAT, _ROWS)
def add_norm(x, delta, weight, eps, out):
    """`x += delta`, and `out = rms_norm(x) * weight`, rows `[n, H]`."""
    for i in range(len(x)):
        for j in range(x.shape[1]):
            x[i, j] += delta[i, j]
        scale = _ONE / _root_mean(x[i], eps)
        for j in range(x.shape[1]):
            out[i, j] = x[i, j] * scale * weight[j]


@_entry(_ROWS, _ROWS, _BOOL, _FLOAT, _ROWS, _ROWS, _INT, _HEADS, _HEADS, _HEADS, _INT)
def heads(qkv, gain, normed, eps, cos, sin, new, queries, keys, values, start):
    """Norms and rotations of attention heads; results go where attention reads them.

    Args:
        qkv: `[new + n, (heads + 2 * kv_heads) * D]`, one product's rows.
        gain: `[heads + kv_heads, D]`, weights of the norms; ones without.
        normed: Whether there are norms.
        eps: Of the norms.
        cos, sin: `[new + n, D]`, see `models.rope.tables`.
        new: First rows, of which only keys and values are wanted.
        queries: `[kv_heads, heads / kv_heads * n, D]`, filled; those that share keys together.
        keys, values: `[kv_heads, capacity, D]`, filled from `start` on.
        start: Rows there already.
    """
    groups, width = len(keys), keys.shape[2]
    half, asking = width // 2, len(gain) - groups
    n, shared = len(qkv) - new, asking // groups
    for row in range(len(qkv)):
        for h in range(0 if row >= new else asking, asking + groups):
            head = qkv[row, h * width : (h + 1) * width]
            scale = _ONE / _root_mean(head, eps) if normed else _ONE
            if h < asking:
                out = queries[h // shared, h % shared * n + row - new]
            else:
                out = keys[h - asking, start + row]
            for j in range(half):
                low = head[j] * scale * gain[h, j]
                high = head[half + j] * scale * gain[h, half + j]
                out[j] = low * cos[row, j] + high * sin[row, j]
                out[half + j] = high * cos[row, half + j] + low * sin[row, half + j]
        for h in range(groups):
            for j in range(width):
                values[h, start + row, j] = qkv[row, (asking + groups + h) * width + j]


@_helper
def _weigh(weights, rows, values, out):
    """`out[i] = weights[i] @ values` for `rows` rows; four values pass at once."""
    count = weights.shape[1]
    for i in range(rows):
        for d in range(out.shape[1]):
            out[i, d] = _ZERO
    for t in range(0, count - 3, 4):
        for i in range(rows):
            p, q, r, s = weights[i, t], weights[i, t + 1], weights[i, t + 2], weights[i, t + 3]
            for d in range(out.shape[1]):
                out[i, d] += (
                    p * values[t, d]
                    + q * values[t + 1, d]
                    + r * values[t + 2, d]
                    + s * values[t + 3, d]
                )
    for t in range(count // 4 * 4, count):
        for i in range(rows):
            for d in range(out.shape[1]):
                out[i, d] += weights[i, t] * values[t, d]


@_entry(_HEADS, _HEADS, _HEADS, _INT, _FLOAT, _ROWS)
def attend(queries, keys, values, end, scale, out):
    """Attention of a few rows that all see everything.

    Args:
        queries: `[kv_heads, heads / kv_heads * n, D]`.
        keys, values: `[kv_heads, capacity, D]`, of which `end` rows are there.
        end: See `keys`.
        scale: Of the products of queries and keys.
        out: `[n, heads * D]`, filled.
    """
    groups, rows, width = queries.shape
    n = len(out)
    asking = np.zeros(((rows + 3) // 4 * 4, width), np.float32)
    weights = np.empty((len(asking), end), np.float32)
    mixed = np.empty((rows, width), np.float32)
    nothing = np.zeros(end, np.float32)
    for group in range(groups):
        for r in range(rows):
            for d in range(width):
                asking[r, d] = queries[group, r, d] * scale
        _product(asking, rows, keys[group, :end], nothing, weights)
        for r in range(rows):
            top = _top(weights[r])
            total = _ZERO
            for t in range(end):
                weights[r, t] = _exp(weights[r, t] - top)
                total += weights[r, t]
            for t in range(end):
                weights[r, t] /= total
        _weigh(weights, rows, values[group, :end], mixed)
        for r in range(rows):
            head = group * (rows // n) + r // n
            for d in range(width):
                out[r % n, head * width + d] = mixed[r, d]


@_entry(_HEADS, _ROWS)
def by_row(attended, out):
    """`[kv_heads, heads / kv_heads * n, D]` to `[n, heads * D]`."""
    groups, rows, width = attended.shape
    n = len(out)
    shared = rows // n
    for i in range(n):
        for h in range(groups * shared):
            for j in range(width):
                out[i, h * width + j] = attended[h // shared, h % shared * n + i, j]


@_entry(_ROWS, _ROWS)
def gated(gate_up, out):
    """`silu(gate) * up` of `[n, 2 * M]`, to `[n, M]`."""
    width = out.shape[1]
    for i in range(len(out)):
        for j in range(width):
            gate = gate_up[i, j]
            out[i, j] = gate * _sigmoid(gate) * gate_up[i, width + j]


@_entry(_ROWS, _INDICES, _INDICES, _ROW, _INDICES)
def read_targets(logits, parent, token, logp, rank):
    """What the target made of the rows it scored.

    Args:
        logits: float32 `[n + 1, V]`.
        parent: int64 `[n + 1]`, rows; the first row has none.
        token: int64 `[n + 1]`.
        logp: float32 `[n + 1]`, filled with each token's log-probability in its parent's row, 0
            for the first.
        rank: int64 `[n + 1]`, filled with its rank there, from 1; 0 for the first.
    """
    norm = np.full(len(parent), np.float32(np.nan))
    logp[0], rank[0] = _ZERO, 0
    for i in range(1, len(parent)):
        row, own = parent[i], logits[parent[i], token[i]]
        if np.isnan(norm[row]):
            norm[row] = _log_total(logits[row])
        above = np.int32(0)
        for j in range(logits.shape[1]):
            above += np.int32(logits[row, j] > own)
        logp[i], rank[i] = own - norm[row], above + 1

"""Growing a whole tree in one call, for a Domino head on a CPU.

What takes a tree's levels so long as tensor operations is not the arithmetic but hundreds of calls
of microseconds each. PyTorch's threads share the arithmetic; one of them chooses. Semantics are
those of `dartree_core.draft.builders.dartree` with `heads.lean_domino`, which stay the oracle in
tests.
"""

# Functions are compiled by Numba, not run by Python: types are Numba's.
# mypy: ignore-errors

from __future__ import annotations

import numpy as np
from numba import typeof, types

from dartree_core.compiled import openmp
from dartree_core.compiled.growth_data import (
    ABOVE,
    FILLED,
    FRONTIER,
    LEVELS,
    NO_HEAD,
    NO_LIMITS,
    NODES,
    Tree,
    Work,
)
from dartree_core.compiled.jit import entry, helper
from dartree_core.compiled.maths import ONE, ZERO, exp, log_total, sigmoid
from dartree_core.compiled.products import product, share, whole
from dartree_core.compiled.ranking import best_nodes, leading, merge, select
from dartree_core.compiled.tiles import PANEL

_ROW, _ROWS = types.float32[::1], types.float32[:, ::1]
_INDICES, _TABLE = types.int64[::1], types.int64[:, ::1]
_TWO = np.float32(2)
_GROUP = 4
"""Rows that `_product` computes at once."""


@helper
def _product(x, weight, bias, out):
    """`out[i] = weight @ x[i] + bias` for `_GROUP` rows, which share a weight that was read."""
    outs, width = weight.shape
    for o in range(outs):
        a = b = c = d = bias[o]
        for k in range(width):
            u = weight[o, k]
            a += u * x[0, k]
            b += u * x[1, k]
            c += u * x[2, k]
            d += u * x[3, k]
        out[0, o], out[1, o], out[2, o], out[3, o] = a, b, c, d


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
def _candidates(slot, logits, head, limits, work, tree):
    """The tokens a slot may propose."""
    base, rows = work.base[slot], work.rows[slot]
    leading(logits[slot], base, rows)
    for c in range(limits.size):
        tree.candidates[slot, c] = head.ids[rows[c]]
    work.norm[slot] = log_total(base if slot >= head.prefix_len else logits[slot])


@helper
def _score(slot, first, end, head, limits, scale, work, tree):
    """Score the candidates below the frontier's rows from `first`, a group's, to before `end`."""
    size, mix, above = limits.size, work.mixed.shape[1], work.state[ABOVE]
    base, norm = work.base[slot], work.norm[slot]
    if slot < head.prefix_len:
        for f in range(first, end):
            for c in range(limits.branch):
                logp = min(base[c] - norm, ZERO)
                work.scores[f, c], work.total[f, c] = logp, tree.path_logp[above + f] + logp
        return
    gates = len(head.of_nothing)
    for f in range(first, end):
        for e in range(mix):
            x = work.shared[slot, e] + work.carried[f, gates + e]
            work.mixed[f, e] = x * sigmoid(x)
    group = slice(first, first + _GROUP)
    _product(work.mixed[group], work.last, work.last_bias, work.scores[group])
    for f in range(first, end):
        scores = work.scores[f]
        for c in range(size):
            scores[c] = base[c] + scale * scores[c]
        norm = log_total(scores)
        for c in range(size):
            # Rounding may end just above 0, and a child would pass its parent.
            scores[c] = min(scores[c] - norm, ZERO)
            work.total[f, c] = tree.path_logp[above + f] + scores[c]


@helper
def _choose(slot, count, head, limits, work, tree):
    """Take the next level's nodes, and tell how many of them get children."""
    state, size = work.state, limits.size
    frontier, above, nodes = state[FRONTIER], state[ABOVE], state[NODES]
    columns = size if slot >= head.prefix_len else limits.branch
    picked, chosen, values = work.picked, work.chosen, work.values
    total, used = work.total[:frontier, :columns], work.used[:frontier, :columns]
    select(total, used, count, limits.branch, picked, chosen, values)
    for n in range(count):
        node, f, c = nodes + 1 + n, picked[n], chosen[n]
        tree.token[node], tree.depth[node] = tree.candidates[slot, c], slot + 1
        tree.parent[node], tree.path_logp[node] = above + f, values[n]
        tree.draft_logp[node] = min(work.base[slot, c] - work.norm[slot], ZERO)
        tree.draft_rank[node], tree.head_logp[node] = c + 1, work.scores[f, c]
        better = 0
        for other in range(columns):
            better += work.scores[f, other] > work.scores[f, c]
        tree.head_rank[node] = better + 1
    frontier = count
    if limits.enough:
        lift = limits.bonus * np.float32(slot + 1)
        state[FILLED] = merge(work.best, state[FILLED], values[:count], lift)
        if state[FILLED] == limits.enough:
            # Best first, so those from which anything can come lead the level. NaN compares
            # false: what overflowed is grown to its end.
            least = work.best[limits.enough - 1]
            while frontier > 0 and values[frontier - 1] + lift <= least:
                frontier -= 1
    state[LEVELS], state[ABOVE], state[NODES] = slot + 1, nodes + 1, nodes + count
    state[FRONTIER] = frontier


@helper
def _count(slot, limits, state):
    """Nodes that the next level gets."""
    count = limits.width
    if limits.spread:
        count = -((state[NODES] - limits.width) // (limits.depths - slot))
    return min(count, state[FRONTIER] * limits.branch)


def _grow(job):
    """A thread's part of a tree."""
    logits, hidden, scale, given, head, limits, work, tree = job
    thread, threads = openmp.thread(), openmp.threads()
    mix = work.mixed.shape[1]
    width, inner = work.states.shape[1], hidden.shape[1]
    state, states, fresh = work.state, work.states, work.fresh
    for slot in range(thread, limits.depths, threads):
        _candidates(slot, logits, head, limits, work, tree)
    first, last = share(work.shared.shape[1] // PANEL, thread, threads)
    at, table = head.of_slot, head.of_slot_table
    slots = hidden[: limits.depths]
    product(head.kind, slots, slots, inner, at, table, work.shared, first, last)
    if thread == 0:
        # Nothing before the root enters: `fresh` is zero still.
        _next_state(given, head.of_nothing, fresh[0], states[0])
    openmp.meet(work.place, threads)
    for slot in range(limits.depths):
        frontier, count = state[FRONTIER], _count(slot, limits, state)
        if count <= 0:
            break
        first, last = share(work.carried.shape[1] // PANEL, thread, threads)
        at, table, held = head.of_state, head.of_state_table, states[:frontier]
        product(head.kind, held, held, width, at, table, work.carried, first, last)
        if slot >= head.prefix_len:
            first, last = share(limits.size, thread, threads)
            for c in range(first, last):
                row = work.rows[slot, c]
                work.last_bias[c] = head.last_bias[row]
                for e in range(mix):
                    work.last[c, e] = head.last[row, e]
        openmp.meet(work.place, threads)
        for group in range(thread * _GROUP, frontier, threads * _GROUP):
            end = min(group + _GROUP, frontier)
            _score(slot, group, end, head, limits, scale, work, tree)
        openmp.meet(work.place, threads)
        if thread == 0:
            _choose(slot, count, head, limits, work, tree)
        openmp.meet(work.place, threads)
        if slot + 1 == limits.depths:
            break
        for n in range(thread, state[FRONTIER], threads):
            row, above = work.rows[slot, work.chosen[n]], work.picked[n]
            _next_state(head.inputs[row], work.carried[above], states[above], fresh[n])
        openmp.meet(work.place, threads)
        states, fresh = fresh, states


_together = openmp.crew(_grow)


@entry(
    _ROWS,
    _ROWS,
    types.float32,
    types.int64,
    _ROW,
    typeof(NO_HEAD),
    typeof(NO_LIMITS),
    types.int64,
    types.int64,
)
def grow(logits, hidden, scale, root, given, head, limits, mix, threads):
    """A whole supertree.

    Args:
        logits: float32 `[K, Vd]`, marginal logits.
        hidden: float32 `[K, H]`, the slots' hidden states.
        scale: float32, of corrections.
        root: The last committed token.
        given: float32 `[3G]`, its product with the GRU's input weights.
        head: See `growth_data.Head`.
        limits: See `growth_data.Limits`.
        mix: E.
        threads: Who share the work.

    Returns:
        Columns int64 `[5, N + 1]` and float32 `[3, N + 1]` of a `growth_data.Tree`, ids of nodes
        to be verified, the root's included, int64 `[kept]`, and candidates int64 `[levels, size]`.
    """
    depths, size, width = limits.depths, limits.size, limits.width
    most = width if limits.spread else width * depths
    integers, floats = np.zeros((5, most + 1), np.int64), np.zeros((3, most + 1), np.float32)
    gates, padded = len(given), (width + _GROUP - 1) // _GROUP * _GROUP
    tree = Tree(
        integers[0],
        integers[1],
        integers[2],
        integers[3],
        integers[4],
        floats[0],
        floats[1],
        floats[2],
        np.empty((depths, size), np.int64),
    )
    tree.token[0], tree.parent[0] = root, -1
    state = np.zeros(8, np.int64)
    state[FRONTIER] = 1
    work = Work(
        rows=np.empty((depths, size), np.int64),
        base=np.empty((depths, size), np.float32),
        norm=np.empty(depths, np.float32),
        last=np.empty((size, mix), np.float32),
        last_bias=np.empty(size, np.float32),
        shared=np.empty((depths, whole(mix)), np.float32),
        states=np.zeros((padded, gates // 3), np.float32),
        fresh=np.zeros((padded, gates // 3), np.float32),
        carried=np.empty((padded, whole(gates + mix)), np.float32),
        mixed=np.zeros((padded, mix), np.float32),
        scores=np.empty((padded, size), np.float32),
        total=np.empty((padded, size), np.float32),
        used=np.empty((padded, size), np.bool_),
        picked=np.empty(width, np.int64),
        chosen=np.empty(width, np.int64),
        values=np.empty(width, np.float32),
        best=np.empty(max(limits.enough, 1), np.float32),
        state=state,
        place=np.zeros(openmp.MEETING, np.int64),
    )
    _together((logits, hidden, scale, given, head, limits, work, tree), threads)
    end = state[NODES] + 1
    kept = best_nodes(tree.path_logp[:end], tree.depth[:end], limits.keep, limits.bonus)
    return integers[:, :end], floats[:, :end], kept, tree.candidates[: state[LEVELS]]


@entry(
    _ROWS,
    _ROWS,
    types.float32,
    _ROWS,
    _INDICES,
    _TABLE,
    types.int64,
    typeof(NO_HEAD),
    types.int64,
)
def follow(logits, hidden, scale, given, path, rivals, first, head, mix):
    """Log-probabilities of a path's tokens as `grow` would have scored them.

    Args:
        logits, hidden, scale, head, mix: See `grow`.
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
    asked, gates, inner = len(path), given.shape[1], hidden.shape[1]
    width = gates // 3
    out = np.full((asked - first, 2), np.float32(-np.inf))
    shared = np.empty((asked, whole(mix)), np.float32)
    slots = hidden[:asked]
    at, table = head.of_slot, head.of_slot_table
    product(head.kind, slots, slots, inner, at, table, shared, 0, shared.shape[1] // PANEL)
    states, fresh = np.zeros((1, width), np.float32), np.zeros((1, width), np.float32)
    carried = np.empty((1, whole(gates + mix)), np.float32)
    mixed = np.empty(mix, np.float32)
    both = np.empty((2, rivals.shape[1] + 1), np.float32)
    _next_state(given[0], head.of_nothing, fresh[0], states[0])
    for slot in range(asked):
        at, table = head.of_state, head.of_state_table
        panels = carried.shape[1] // PANEL
        product(head.kind, states, states, width, at, table, carried, 0, panels)
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
            _next_state(given[slot + 1], carried[0], states[0], fresh[0])
            states, fresh = fresh, states
    return out

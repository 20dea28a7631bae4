"""A decoder's whole pass over a few rows: one call, shared among PyTorch's threads.

Between two products all threads meet; what lies there is shared by rows, by columns or by
attention heads.
A row comes out bit by bit as it would alone, whatever rows lie between it and those it sees: sums
over positions are taken in their order, in which a position that is not seen adds nothing, or do
not depend on their order. So a verified row is what plain decoding would have computed.
Semantics are those of `dartree_core.models.lean` and `dartree_core.draft.lean`, which stay the
oracle in tests.
"""

# Functions are compiled by Numba, not run by Python: types are Numba's.
# mypy: ignore-errors

from __future__ import annotations

import numpy as np
from numba import types

from dartree_core.compiled import openmp
from dartree_core.compiled.jit import entry, exact_helper, helper
from dartree_core.compiled.maths import ONE, ZERO, exp, largest, root_mean, sigmoid, summand
from dartree_core.compiled.pass_data import DOWN, GATE_UP, OUT, QKV, rows_of, weights_of
from dartree_core.compiled.products import CODED, encode, product, share
from dartree_core.compiled.ranking import first_largest
from dartree_core.compiled.tiles import FLOAT32, LANES, MOST, PANEL, tile, turn


@helper
def _norm(x, weight, eps, out):
    """`out[: H] = rms_norm(x) * weight` of one row."""
    scale = ONE / root_mean(x, eps)
    for j in range(len(x)):
        out[j] = x[j] * scale * weight[j]


@helper
def _add_norm(x, delta, weight, eps, out):
    """`x += delta`, and its norm."""
    for j in range(len(x)):
        x[j] += delta[j]
    _norm(x, weight, eps, out)


@exact_helper
def _gate(gate, up, out):
    """`out = silu(gate) * up`."""
    for j in range(len(out)):
        out[j] = gate[j] * sigmoid(gate[j]) * up[j]


@helper
def _turned(x, cos, sin, out):
    """A head, rotated."""
    half = len(x) // 2
    for j in range(half):
        low, high = x[j], x[half + j]
        out[j] = low * cos[j] + high * sin[j]
        out[half + j] = high * cos[half + j] + low * sin[half + j]


@helper
def _heads(qkv, gain, model, cos, sin, row, queries, keys, values, at):
    """Norms and rotations of one row's heads; results go where attention reads them.

    Args:
        qkv: `[>= (heads + 2 kv_heads) * D]`, written over.
        gain: `[heads + kv_heads, D]`.
        model: See `Weights`.
        cos, sin: `[D]`.
        row: Number among rows that ask; negative for context.
        queries: `[kv_heads, n * heads / kv_heads, D]`, already scaled as attention wants them.
        keys, values: `[kv_heads, capacity, D]`, filled at `at`.
        at: See `keys`.
    """
    groups, width = len(keys), keys.shape[2]
    asking = len(gain) - groups
    shared = asking // groups
    scale = np.float32(width) ** np.float32(-0.5)
    for h in range(0 if row >= 0 else asking, asking + groups):
        head = qkv[h * width : (h + 1) * width]
        own = ONE / root_mean(head, model.eps) if model.normed else ONE
        if h < asking:
            own *= scale
        for j in range(width):
            head[j] *= own * gain[h, j]
        if h < asking:
            _turned(head, cos, sin, queries[h // shared, row * shared + h % shared])
        else:
            _turned(head, cos, sin, keys[h - asking, at])
    for h in range(groups):
        begin = (asking + groups + h) * width
        values[h, at, :] = qkv[begin : begin + width]


@helper
def _weigh(scores, known, visible):
    """`exp(scores - max)` of one query in place, nothing where it may not look; their sum."""
    top = largest(scores[:known])
    for t in range(len(visible)):
        if visible[t]:
            top = max(top, scores[known + t])
    total = 0.0
    for t in range(known):
        scores[t] = exp(scores[t] - top)
        total += summand(scores[t])
    for t in range(len(visible)):
        weight = exp(scores[known + t] - top) if visible[t] else ZERO
        scores[known + t] = weight
        total += summand(weight)
    return np.float32(total)


@helper
def _columns(keys, first, last, block):
    """`block[d, i] = keys[first + i, d]`, up to `last`."""
    width, step = keys.shape[1], keys.shape[1] * 4
    if width < LANES or last - first < PANEL:
        for i in range(last - first):
            for d in range(width):
                block[d, i] = keys[first + i, d]
        return
    for i in range(0, PANEL, LANES):
        for part in range(0, width, LANES):
            d = min(part, width - LANES)  # the last may overlap the one before
            source = keys.ctypes.data + (first + i) * step + d * 4
            turn(source, step, block.ctypes.data + (d * PANEL + i) * 4, PANEL * 4)


@helper
def _attend(queries, first, some, keys, values, run, group, nothing, thread):
    """Attention of up to `MOST` queries from `first` on, that share keys."""
    width, step = keys.shape[1], keys.shape[1] * 4
    end, known = run.start + len(run.normed), run.start + len(run.normed) - len(run.x)
    shared = len(queries) // len(run.x)
    scores, block, attended = run.scores[thread], run.block[thread], run.attended[thread]
    score_step = scores.shape[1] * 4
    asked = queries[first:].ctypes.data
    zeros = nothing.ctypes.data
    for t in range(0, end, PANEL):
        _columns(keys, t, min(t + PANEL, end), block)
        found = scores.ctypes.data + t * 4
        columns = block.ctypes.data
        tile(FLOAT32, some, asked, step, columns, PANEL * 4, width, zeros, found, score_step)
    totals = np.empty(MOST, np.float32)
    for r in range(some):
        totals[r] = _weigh(scores[r], known, run.visible[(first + r) // shared])
    if width < PANEL:
        for r in range(some):
            for d in range(width):
                attended[r, d] = ZERO
            for t in range(end):
                for d in range(width):
                    attended[r, d] += scores[r, t] * values[t, d]
    else:
        for part in range(0, width, PANEL):
            d = min(part, width - PANEL)
            weighed, out = values.ctypes.data + d * 4, attended.ctypes.data + d * 4
            weights = scores.ctypes.data
            tile(FLOAT32, some, weights, score_step, weighed, step, end, zeros, out, step)
    for r in range(some):
        begin = (group * shared + (first + r) % shared) * width
        part = ONE / totals[r]
        out = run.mixed[(first + r) // shared, begin : begin + width]
        for d in range(width):
            out[d] = attended[r, d] * part


@helper
def _choose(logits, choice, outs, first, last, thread):
    """Where a thread's panels have each row's largest logit; -1 without any."""
    begin, end = first * PANEL, min(last * PANEL, outs)
    for i in range(len(logits)):
        found = begin + first_largest(logits[i, begin:end]) if begin < end else -1
        choice[1 + thread, i] = found


@helper
def _join(logits, choice):
    """Where all of them have it, the first of equal ones."""
    for i in range(len(logits)):
        found, top = 0, np.float32(np.nan)
        for other in range(1, len(choice)):
            at = choice[other, i]
            if at >= 0 and not logits[i, at] <= top:
                found, top = at, logits[i, at]
        choice[0, i] = found


def _pass(job):
    """A thread's part of a pass."""
    model, run = job
    thread, threads = openmp.thread(), openmp.threads()
    n, hidden = run.x.shape
    new = len(run.normed) - n
    own, codes = run.normed[new:], run.codes[new:]
    coded = model.kind in CODED
    groups, width = run.cache.shape[2], run.cache.shape[4]
    inner, half = (model.gain.shape[1] - groups) * width, model.intermediate
    shared = inner // width // groups
    blocks = (n * shared + MOST - 1) // MOST
    size = (n * shared + blocks - 1) // blocks
    if len(run.given) > 0:
        kind, count = model.context_kind, run.given.shape[1]
        if kind in CODED:
            for i in range(thread, new, threads):
                encode(kind, run.given[i], run.given_codes[i])
            openmp.meet(run.place, threads)
        first, last = share((hidden + PANEL - 1) // PANEL, thread, threads)
        at, table, made = model.context, model.context_table, run.normed
        product(kind, run.given, run.given_codes, count, at, table, made, first, last)
        openmp.meet(run.place, threads)
        for i in range(thread, new, threads):
            row = run.normed[i]
            _norm(row[:hidden], model.context_norm, model.eps, row)
    for i in range(thread, n, threads):
        _norm(run.x[i], model.norms[0], model.eps, own[i])
    if coded:
        for i in range(thread, new, threads):
            encode(model.kind, run.normed[i, :hidden], run.codes[i])
        for i in range(thread, n, threads):
            encode(model.kind, own[i, :hidden], codes[i])
    openmp.meet(run.place, threads)
    for layer in range(len(model.weights)):
        weights, tables = model.weights[layer], model.tables[layer]
        keys, values = run.cache[layer, 0], run.cache[layer, 1]

        first, last = share(run.qkv.shape[1] // PANEL, thread, threads)
        at, table = weights[QKV], tables[QKV]
        product(model.kind, run.normed, run.codes, hidden, at, table, run.qkv, first, last)
        openmp.meet(run.place, threads)
        for i in range(thread, new + n, threads):
            _heads(
                run.qkv[i],
                model.gain[layer],
                model,
                run.cos[run.positions[i]],
                run.sin[run.positions[i]],
                i - new,
                run.queries,
                keys,
                values,
                run.start + i,
            )
        openmp.meet(run.place, threads)
        for unit in range(thread, groups * blocks, threads):
            group, begin = unit // blocks, unit % blocks * size
            some = min(size, n * shared - begin)
            asked, to, of = run.queries[group], keys[group], values[group]
            _attend(asked, begin, some, to, of, run, group, model.nothing, thread)
        openmp.meet(run.place, threads)
        if coded:
            for i in range(thread, n, threads):
                encode(model.kind, run.mixed[i, :inner], codes[i])
            openmp.meet(run.place, threads)

        first, last = share(run.delta.shape[1] // PANEL, thread, threads)
        at, table = weights[OUT], tables[OUT]
        product(model.kind, run.mixed, codes, inner, at, table, run.delta, first, last)
        openmp.meet(run.place, threads)
        for i in range(thread, n, threads):
            _add_norm(run.x[i], run.delta[i], model.norms[2 * layer + 1], model.eps, own[i])
            if coded:
                encode(model.kind, own[i, :hidden], codes[i])
        openmp.meet(run.place, threads)

        at, table = weights[GATE_UP], tables[GATE_UP]
        if half % PANEL == 0:
            # Gates and what they gate are computed by the same thread: it waits for no other.
            up = half // PANEL
            first, last = share(up, thread, threads)
            for off in (0, up):
                start, stop = off + first, off + last
                product(model.kind, own, codes, hidden, at, table, run.gate_up, start, stop)
            begin, end = first * PANEL, last * PANEL
        else:
            first, last = share(run.gate_up.shape[1] // PANEL, thread, threads)
            product(model.kind, own, codes, hidden, at, table, run.gate_up, first, last)
            openmp.meet(run.place, threads)
            begin, end = share(half, thread, threads)
        for i in range(n):
            row = run.gate_up[i]
            _gate(row[begin:end], row[half + begin : half + end], run.gated[i, begin:end])
        openmp.meet(run.place, threads)
        if coded:
            for i in range(thread, n, threads):
                encode(model.kind, run.gated[i, :half], codes[i])
            openmp.meet(run.place, threads)

        first, last = share(run.delta.shape[1] // PANEL, thread, threads)
        at, table = weights[DOWN], tables[DOWN]
        product(model.kind, run.gated, codes, half, at, table, run.delta, first, last)
        openmp.meet(run.place, threads)
        for i in range(thread, n, threads):
            _add_norm(run.x[i], run.delta[i], model.norms[2 * layer + 2], model.eps, own[i])
            if coded:
                encode(model.kind, own[i, :hidden], codes[i])
            for k in range(len(run.taps)):
                if run.taps[k] == layer:
                    run.features[i, k * hidden : (k + 1) * hidden] = run.x[i]
        openmp.meet(run.place, threads)
    first, last = share(run.logits.shape[1] // PANEL, thread, threads)
    begin = n - len(run.logits)
    at, table = model.head, model.head_table
    asked, said = own[begin:], codes[begin:]
    product(model.kind, asked, said, hidden, at, table, run.logits, first, last)
    if run.choice.shape[1] > 0:
        _choose(run.logits, run.choice, model.outs, first, last, thread)
        openmp.meet(run.place, threads)
        if thread == 0:
            _join(run.logits, run.choice)


_together = openmp.crew(_pass)


@entry(types.int64[::1], types.int64[::1], types.int64)
def run(model, rows, threads):
    """One pass, by so many threads; False, and nothing done, where a position has no factors.

    Args:
        model: See `pass_data.KIND`; all that addresses point to must live.
        rows: See `pass_data.COUNT`.
        threads: As many as there are rows of scores.
    """
    made = weights_of(model), rows_of(rows, model, threads)
    for position in made[1].positions:
        if not 0 <= position < len(made[1].cos):
            return False
    _together(made, threads)
    return True

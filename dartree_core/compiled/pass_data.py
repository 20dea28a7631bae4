"""What a pass in compiled code works on, and how it is told.

Python tells it by two vectors of sizes and addresses. Handing over as many arrays one by one takes
as long as a drafter's layer, once a target's pass has emptied the caches.
"""

# Functions are compiled by Numba, not run by Python: types are Numba's.
# mypy: ignore-errors

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import carray

from dartree_core.compiled import openmp
from dartree_core.compiled.arrays import Array
from dartree_core.compiled.jit import helper, pointer
from dartree_core.compiled.maths import with_bits
from dartree_core.compiled.products import whole
from dartree_core.compiled.tiles import MOST, PANEL

QKV, OUT, GATE_UP, DOWN = range(4)


class Weights(NamedTuple):
    """What stays from pass to pass; `L` layers.

    Attributes:
        kind: Of the products' weights, see `tiles`.
        weights, tables: int64 `[L, 4]`, addresses: queries, keys and values; output; gate and up;
            down.
        head, head_table: Addresses of the product behind the last layer.
        outs: `V`.
        norms: `[2L + 1, H]`, before attention and before the MLP of every layer, and the last.
        gain: `[L, heads + kv_heads, D]`, weights of the norms of queries and keys; ones without.
        normed: Whether there are such norms.
        eps: Of the norms.
        intermediate: `M`.
        nothing: `[32]`, zeros.
        context_kind, context, context_table: Of the product that makes rows of context.
        context_norm: `[H]`, of the norm behind it; of no use where such rows are given.
    """

    kind: int
    weights: Array
    tables: Array
    head: int
    head_table: int
    outs: int
    norms: Array
    gain: Array
    normed: bool
    eps: np.float32
    intermediate: int
    nothing: Array
    context_kind: int
    context: int
    context_table: int
    context_norm: Array


class Rows(NamedTuple):
    """One pass over `n` rows behind `t` rows of context.

    Context rows are only attended to: the same ones in every layer, as a drafter's are.

    Attributes:
        x: `[n, H]`, embedded rows; written over.
        positions: int64 `[t + n]`.
        cos, sin: `[any, D]`, by position, see `models.rope.tables`.
        cache: `[L, 2, kv_heads, capacity, D]`, keys and values; filled from `start` on.
        start: Rows there already.
        visible: bool `[n, n]`, which rows a row sees; it sees all context.
        taps: int64, layers whose outputs are wanted.
        features: `[n, len(taps) * H]`, filled with them.
        logits: `[m, panels * 32]`, filled for the last `m` rows.
        choice: int64 `[1 + threads, m or 0]`, the first row filled with where their largest
            logits are.
        queries: `[kv_heads, n * heads / kv_heads, D]`.
        given: `[t, F]`, what rows of context are made from; empty where they are in `normed`.
        given_codes: `[t, width]`, as `codes`.
        normed: `[t + n, >= H]`, as wide as whole panels, what products read. In the end the last
            `n` are the pass's normed rows.
        mixed, gated: `[n, >= heads * D]`, `[n, >= M]`, what other products read.
        qkv, delta, gate_up: What products write: `[t + n, (heads + 2 kv_heads) * D]`, `[n, H]`,
            `[n, 2M]`, each as wide as whole panels.
        codes: `[t + n, width]`, rows as some kinds want them, see `products.encode`.
        scores: `[threads, MOST, >= start + t + n]`, in whole panels.
        block: `[threads, D, 32]`.
        attended: `[threads, MOST, D]`.
        place: Where threads meet, see `openmp.meet`.
    """

    x: Array
    positions: Array
    cos: Array
    sin: Array
    cache: Array
    start: int
    visible: Array
    taps: Array
    features: Array
    logits: Array
    choice: Array
    queries: Array
    given: Array
    given_codes: Array
    normed: Array
    mixed: Array
    gated: Array
    qkv: Array
    delta: Array
    gate_up: Array
    codes: Array
    scores: Array
    block: Array
    attended: Array
    place: Array


(
    KIND,
    LAYERS,
    HIDDEN,
    HEADS,
    GROUPS,
    WIDTH,
    HALF,
    NORMED,
    EPS,
    WEIGHTS,
    TABLES,
    HEAD,
    HEAD_TABLE,
    HEAD_PANELS,
    OUTS,
    NORMS,
    GAIN,
    NOTHING,
    CONTEXT_KIND,
    CONTEXT,
    CONTEXT_TABLE,
    CONTEXT_NORM,
    CONTEXT_WIDTH,
    GIVEN_CODES_WIDTH,
    CODES_WIDTH,
    APART,
    MODEL,
) = range(27)
"""What `Weights` are made from, an int64 each: sizes, flags, addresses, and the bits of `eps`."""

(
    COUNT,
    NEW,
    START,
    CAPACITY,
    TAPPED,
    ASKED,
    CHOOSES,
    REACH,
    X,
    PLACES,
    COS,
    SIN,
    CACHE,
    VISIBLE,
    TAPS,
    FEATURES,
    LOGITS,
    CHOICE,
    GIVEN,
    POSITIONS,
    GIVEN_CODES,
    QUERIES,
    NORMED_ROWS,
    MIXED,
    GATED,
    QKV_ROWS,
    DELTA,
    GATE_UP_ROWS,
    CODES,
    SCORES,
    BLOCK,
    ATTENDED,
    PLACE,
    ROWS,
) = range(34)
"""What `Rows` are made from: up to `GIVEN` what every pass has of its own, then buffers."""


@helper
def weights_of(of):
    """See `Weights`."""
    layers, hidden, width = of[LAYERS], of[HIDDEN], of[WIDTH]
    heads = of[HEADS] + of[GROUPS]
    return Weights(
        of[KIND],
        carray(pointer(of[WEIGHTS]), (layers, 4), np.int64),
        carray(pointer(of[TABLES]), (layers, 4), np.int64),
        of[HEAD],
        of[HEAD_TABLE],
        of[OUTS],
        carray(pointer(of[NORMS]), (2 * layers + 1, hidden), np.float32),
        carray(pointer(of[GAIN]), (layers, heads, width), np.float32),
        of[NORMED] != 0,
        with_bits(np.int32(of[EPS])),
        of[HALF],
        carray(pointer(of[NOTHING]), (PANEL,), np.float32),
        of[CONTEXT_KIND],
        of[CONTEXT],
        of[CONTEXT_TABLE],
        carray(pointer(of[CONTEXT_NORM]), (hidden,), np.float32),
    )


@helper
def _floats(address, rows, width):
    return carray(pointer(address), (rows, width), np.float32)


@helper
def rows_of(of, model, threads):
    """See `Rows`."""
    n, new, width, apart = of[COUNT], of[NEW], model[WIDTH], model[APART]
    hidden, heads, groups, half = model[HIDDEN], model[HEADS], model[GROUPS], model[HALF]
    known = new if of[GIVEN] else 0
    every = new + n
    return Rows(
        _floats(of[X], n, hidden),
        carray(pointer(of[PLACES]), (every,), np.int64),
        _floats(of[COS], of[REACH], width),
        _floats(of[SIN], of[REACH], width),
        carray(
            pointer(of[CACHE]),
            (model[LAYERS], 2, groups, of[CAPACITY], width),
            np.float32,
        ),
        of[START],
        carray(pointer(of[VISIBLE]), (n, n), np.bool_),
        carray(pointer(of[TAPS]), (of[TAPPED],), np.int64),
        _floats(of[FEATURES], n, of[TAPPED] * hidden),
        _floats(of[LOGITS], of[ASKED], model[HEAD_PANELS] * PANEL),
        carray(pointer(of[CHOICE]), (1 + threads, of[ASKED] * of[CHOOSES]), np.int64),
        carray(pointer(of[QUERIES]), (groups, n * heads // groups, width), np.float32),
        _floats(of[GIVEN], known, model[CONTEXT_WIDTH]),
        _floats(of[GIVEN_CODES], known, model[GIVEN_CODES_WIDTH]),
        _floats(of[NORMED_ROWS], every, whole(hidden) + apart),
        _floats(of[MIXED], n, heads * width + apart),
        _floats(of[GATED], n, half + apart),
        _floats(of[QKV_ROWS], every, whole((heads + 2 * groups) * width)),
        _floats(of[DELTA], n, whole(hidden)),
        _floats(of[GATE_UP_ROWS], n, whole(2 * half)),
        _floats(of[CODES], every, model[CODES_WIDTH]),
        carray(pointer(of[SCORES]), (threads, MOST, of[POSITIONS] + apart), np.float32),
        carray(pointer(of[BLOCK]), (threads, width, PANEL), np.float32),
        carray(pointer(of[ATTENDED]), (threads, MOST, width), np.float32),
        carray(pointer(of[PLACE]), (openmp.MEETING,), np.int64),
    )

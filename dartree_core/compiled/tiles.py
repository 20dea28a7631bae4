"""The innermost loops of products: a few rows by 32 outputs, kept in registers.

Weights lie in panels of 32 outputs, `[outs / 32, in, 32]`, so that a panel is read once, from
start to end. An output is one chain of fused multiply-adds along the inputs: a row is computed
as it would be alone, whatever rows share its pass and however many threads share the work.

8-bit weights lie in fours, `[outs / 32, in / 4, 32, 4]`: one instruction multiplies four of them
with four bytes of a row, and adds the sums in 32 bits. CPUs without it take three, and add pairs in
16 bits, for which weights have a bit less. Each row has a scale of its own, so a row is computed as
it would be alone here, too. bfloat16 weights lie in pairs, and are multiplied with pairs of a row
that is rounded to bfloat16; sums are float32.
"""

# Functions are compiled by Numba, not run by Python: types are Numba's.
# mypy: ignore-errors

from __future__ import annotations

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dartree_core.compiled import cpu
from dartree_core.compiled.jit import callback, helper

PANEL = 32
"""Outputs of a tile."""
FLOAT16, FLOAT32, INT8, BFLOAT16 = range(4)
"""Kinds of weights: float16, float32, int8, bfloat16."""
LEVELS = 127 if cpu.multiplies_fours() else 63
"""Of 8-bit weights, either sign."""
SHARED = (1, 1, 4, 2)
"""Inputs that share a step, by kind."""
STEPS = (PANEL * 2, PANEL * 4, PANEL * 4, PANEL * 4)
"""Bytes of a panel that a step takes, by kind."""
TABLES = (1, 1, 3, 1)
"""Rows of 32 numbers in a panel's table, by kind: biases; for int8 also the outputs' scales, and
128 times their weights' sums, int32: bytes of rows are 128 too large, to have no sign."""
LANES = 16
_AHEAD, _LINE = 4096, 64
"""Bytes between what is read and what is fetched from memory, past where the hardware's own
prefetching stops, and bytes fetched at once."""
_KEEP = 0 if cpu.is_zen() else 2
"""How near to keep what is fetched, as LLVM counts: 2 is the second level of cache, 0 nowhere once
it was read. On Intel's the latter reads memory at two thirds of the speed."""

_LONG, _WORD, _FLOAT = ir.IntType(64), ir.IntType(32), ir.FloatType()
_VECTOR = ir.VectorType(_FLOAT, LANES)
_WORDS = ir.VectorType(_WORD, LANES)
_MULTIPLY = {
    INT8: "llvm.x86.avx512.vpdpbusd.512",
    BFLOAT16: "llvm.x86.avx512bf16.dpbf16ps.512",
}
_GIVEN = [types.int64] * 9
_HALVES = ir.VectorType(ir.HalfType(), LANES)
_BYTES = ir.VectorType(ir.IntType(8), 4 * LANES)
_SHORTS = ir.VectorType(ir.IntType(16), 2 * LANES)

MOST = 12 if cpu.has_long_vectors() else 3
"""Rows of a tile: its sums fill most registers."""


class _BFloat16(ir.types.Type):
    """bfloat16, which llvmlite has no name for."""

    def _to_string(self):
        return "bfloat"

    def __eq__(self, other):
        return isinstance(other, _BFloat16)

    def __hash__(self):
        return hash(_BFloat16)


def _at(builder, address, kind):
    return builder.inttoptr(address, kind.as_pointer())


def _fetch(builder, address):
    pointer = _at(builder, address, ir.IntType(8))
    kind = ir.FunctionType(ir.VoidType(), [pointer.type, _WORD, _WORD, _WORD])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [pointer, _WORD(0), _WORD(_KEEP), _WORD(1)])


def _load(builder, address, kind, part=0):
    """A vector of this type; `part` tells it from others behind the same address."""
    size = {_HALVES: 2}.get(kind, 4)
    where = builder.add(address, _LONG(part * LANES * size))
    return builder.load(_at(builder, where, kind), align=size)


def _spread(builder, address, kind):
    """A number of this type, in every lane."""
    return _broadcast(builder, builder.load(_at(builder, address, kind)))


def _broadcast(builder, number):
    vector = ir.Constant(ir.VectorType(number.type, LANES), ir.Undefined)
    one = builder.insert_element(vector, number, _WORD(0))
    return builder.shuffle_vector(one, vector, ir.Constant(_WORDS, [0] * LANES))


def _adder(builder, kind, vector, factor):
    """Emits `sum + x * weight` for vectors of this kind; see the module."""

    def call(name, result, *given):
        made = ir.FunctionType(result, [part.type for part in given])
        return builder.call(cgutils.get_or_insert_function(builder.module, made, name), given)

    def fused(was, x, weight):
        if kind in _MULTIPLY:
            return call(_MULTIPLY[kind], vector, was, x, weight)
        return call("llvm.fma.v16f32", vector, x, weight, was)

    def stepwise(was, x, weight):
        given = (builder.bitcast(part, _BYTES) for part in (x, weight))
        twos = call("llvm.x86.avx512.pmaddubs.w.512", _SHORTS, *given)
        ones = ir.Constant(_SHORTS, [1] * (2 * LANES))
        return builder.add(was, call("llvm.x86.avx512.pmaddw.d.512", vector, twos, ones))

    return stepwise if kind == INT8 and not cpu.multiplies_fours() else fused


def _sums(builder, kind, rows, arguments):
    """Emit one tile of so many rows, at the builder's place; see `tile`."""
    x, x_step, weights, step, depth, table, out, out_step = arguments
    parts = range(PANEL // LANES)
    plain = kind in (FLOAT16, FLOAT32)
    number = _WORD if kind == INT8 else _FLOAT
    vector = ir.VectorType(number, LANES)
    pairs = ir.VectorType(_BFloat16(), 2 * LANES)
    add = _adder(builder, kind, vector, pairs if kind == BFLOAT16 else vector)
    if kind == INT8:
        starts = [ir.Constant(vector, [0] * LANES) for _ in parts]
    else:
        starts = [_load(builder, table, _VECTOR, part) for part in parts]
    x_at = [builder.add(x, builder.mul(x_step, _LONG(row))) for row in range(rows)]
    before = builder.block
    body, after = builder.append_basic_block("inputs"), builder.append_basic_block("sums")
    builder.branch(body)

    builder.position_at_end(body)
    k = builder.phi(_LONG)
    k.add_incoming(_LONG(0), before)
    old = []
    for start in starts * rows:
        old.append(builder.phi(vector))
        old[-1].add_incoming(start, before)
    where = builder.add(weights, builder.mul(k, step))
    for line in range(0, STEPS[kind], _LINE):
        _fetch(builder, builder.add(where, _LONG(_AHEAD + line)))
    stored = {FLOAT16: _HALVES, FLOAT32: _VECTOR, INT8: _WORDS, BFLOAT16: _WORDS}[kind]
    factors = [_load(builder, where, stored, part) for part in parts]
    if kind == FLOAT16:
        factors = [builder.fpext(factor, _VECTOR) for factor in factors]
    elif kind == BFLOAT16:
        factors = [builder.bitcast(factor, pairs) for factor in factors]
    offset = builder.mul(k, _LONG(4))
    new = []
    for row in range(rows):
        value = _spread(builder, builder.add(x_at[row], offset), _FLOAT if plain else _WORD)
        if kind == BFLOAT16:
            value = builder.bitcast(value, pairs)
        for part in parts:
            new.append(add(old[row * len(parts) + part], value, factors[part]))
    following = builder.add(k, _LONG(1))
    k.add_incoming(following, body)
    for was, now in zip(old, new, strict=True):
        was.add_incoming(now, body)
    builder.cbranch(builder.icmp_signed("<", following, depth), body, after)

    builder.position_at_end(after)
    for row in range(rows):
        for part in parts:
            found = new[row * len(parts) + part]
            if kind == INT8:
                end = builder.sub(builder.add(x_at[row], x_step), _LONG(4))
                found = _scaled(builder, found, _spread(builder, end, _FLOAT), table, part)
            where = builder.add(out, builder.mul(out_step, _LONG(row)))
            where = builder.add(where, _LONG(part * LANES * 4))
            builder.store(found, _at(builder, where, _VECTOR), align=4)


def _scaled(builder, sums, scale, table, part):
    """Sums of 8-bit products as float32; see `TABLES`."""
    bias, own, excess = (
        _load(builder, builder.add(table, _LONG(row * PANEL * 4)), kind, part)
        for row, kind in enumerate((_VECTOR, _VECTOR, _WORDS))
    )
    exact = builder.sitofp(builder.sub(sums, excess), _VECTOR)
    return builder.fadd(builder.fmul(exact, builder.fmul(own, scale)), bias)


def _tile(kind):
    """`tile` for one kind of weights: an intrinsic with a loop for every number of rows."""

    @intrinsic
    def run(typing_context, rows, x, x_step, weights, step, depth, bias, out, out_step):
        def generate(context, builder, signature, arguments):
            done = builder.append_basic_block("done")
            choice = builder.switch(arguments[0], done)
            for rows in range(1, MOST + 1):
                block = builder.append_basic_block(f"rows_{rows}")
                choice.add_case(_LONG(rows), block)
                builder.position_at_end(block)
                _sums(builder, kind, rows, arguments[1:])
                builder.branch(done)
            builder.position_at_end(done)
            return context.get_dummy_value()

        return types.none(*_GIVEN), generate

    return run


_float16, _float32 = _tile(FLOAT16), _tile(FLOAT32)
# Never called where there is no such instruction.
_int8 = _tile(INT8) if cpu.multiplies_int8() else _float16
_bfloat16 = _tile(BFLOAT16) if cpu.multiplies_bfloat16() else _float16


@callback(*_GIVEN)
def _tile_float16(rows, x, x_step, weights, step, depth, bias, out, out_step):
    _float16(rows, x, x_step, weights, step, depth, bias, out, out_step)


@callback(*_GIVEN)
def _tile_float32(rows, x, x_step, weights, step, depth, bias, out, out_step):
    _float32(rows, x, x_step, weights, step, depth, bias, out, out_step)


@callback(*_GIVEN)
def _tile_int8(rows, x, x_step, weights, step, depth, bias, out, out_step):
    _int8(rows, x, x_step, weights, step, depth, bias, out, out_step)


@callback(*_GIVEN)
def _tile_bfloat16(rows, x, x_step, weights, step, depth, bias, out, out_step):
    _bfloat16(rows, x, x_step, weights, step, depth, bias, out, out_step)


def _call(function):
    """An intrinsic that calls one of these. Its address is another in every process, so compiled
    code, which is kept, knows it by a name."""
    name = f"dartree_{function.__name__}"
    llvm.add_symbol(name, function.address)

    @intrinsic
    def run(typing_context, rows, x, x_step, weights, step, depth, bias, out, out_step):
        def generate(context, builder, signature, arguments):
            kind = ir.FunctionType(ir.VoidType(), [_LONG] * len(arguments))
            builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)
            return context.get_dummy_value()

        return types.none(*_GIVEN), generate

    return run


_call_float16, _call_float32 = _call(_tile_float16), _call(_tile_float32)
_call_int8, _call_bfloat16 = _call(_tile_int8), _call(_tile_bfloat16)


@helper
def tile(kind, rows, x, x_step, weights, step, depth, table, out, out_step):
    """`out = bias + x @ weights` for a few rows and 32 outputs.

    Args:
        kind: Of the weights.
        rows: At most `MOST`.
        x: Address of rows, `x_step` bytes apart: float32; bfloat16; or bytes with the row's
            scale, float32, as the last four.
        x_step: See `x`.
        weights: Address of the first step of a panel; the others are `step` bytes apart.
        step: See `weights`.
        depth: Steps, at least one.
        table: Address, see `TABLES`.
        out: Address of the first row's float32 sums, `out_step` bytes apart.
        out_step: See `out`.
    """
    if kind == FLOAT16:
        _call_float16(rows, x, x_step, weights, step, depth, table, out, out_step)
    elif kind == FLOAT32:
        _call_float32(rows, x, x_step, weights, step, depth, table, out, out_step)
    elif kind == INT8:
        _call_int8(rows, x, x_step, weights, step, depth, table, out, out_step)
    else:
        _call_bfloat16(rows, x, x_step, weights, step, depth, table, out, out_step)


@helper
def tiles(kind, rows, x, x_step, weights, depth, table, out, out_step, first, last):
    """As `tile`, for any number of rows and the panels from `first` to before `last`."""
    step = STEPS[kind]
    # Rows whose elements fall onto the same lines of the innermost cache push each other out.
    most = min(MOST, 8) if x_step % 4096 == 0 else MOST
    for panel in range(first, last):
        done = 0
        while done < rows:
            blocks = (rows - done + most - 1) // most
            some = (rows - done + blocks - 1) // blocks
            tile(
                kind,
                some,
                x + done * x_step,
                x_step,
                weights + panel * depth * step,
                step,
                depth,
                table + panel * TABLES[kind] * PANEL * 4,
                out + done * out_step + panel * PANEL * 4,
                out_step,
            )
            done += some


@intrinsic
def turn(typing_context, source, source_step, target, target_step):
    """Transpose 16 x 16 float32, rows `source_step` bytes apart, to `target`."""

    def generate(context, builder, signature, arguments):
        source, source_step, target, target_step = arguments
        rows = []
        for row in range(LANES):
            where = builder.add(source, builder.mul(source_step, _LONG(row)))
            rows.append(_load(builder, where, _VECTOR))
        # Swapping blocks off the diagonal, of half the size each time.
        width = LANES // 2
        while width:
            upper = [i if not i & width else i - width + LANES for i in range(LANES)]
            lower = [i + width if not i & width else i + LANES for i in range(LANES)]
            turned = list(rows)
            for row in range(LANES):
                if not row & width:
                    pair = rows[row], rows[row + width]
                    turned[row] = builder.shuffle_vector(*pair, ir.Constant(_WORDS, upper))
                    turned[row + width] = builder.shuffle_vector(*pair, ir.Constant(_WORDS, lower))
            rows, width = turned, width // 2
        for row in range(LANES):
            where = builder.add(target, builder.mul(target_step, _LONG(row)))
            builder.store(rows[row], _at(builder, where, _VECTOR), align=4)
        return context.get_dummy_value()

    return types.none(*[types.int64] * 4), generate

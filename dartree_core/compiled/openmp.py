"""PyTorch's own threads, for compiled code.

A second pool beside PyTorch's would fight it for the cores: both wait for work by spinning. So
compiled code enters the OpenMP runtime that PyTorch runs on, by the interface that GCC compiles
to, which LLVM's and Intel's runtimes have too.

Importing this fails with an `ImportError` where there is none.
"""

# Functions are compiled by Numba, not run by Python: types are Numba's.
# mypy: ignore-errors

from __future__ import annotations

import ctypes
from pathlib import Path

import llvmlite.binding as llvm
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dartree_core.compiled import cpu
from dartree_core.compiled.jit import helper

_SYMBOLS = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
_PREFIX = "dartree_"
_VOID, _INT, _LONG = ir.VoidType(), ir.IntType(32), ir.IntType(64)
_ANY = ir.IntType(8).as_pointer()
MEETING = 16
"""Numbers of a meeting place: two, on lines of their own."""
_PATIENCE = 4000
"""Times to look before another thread may have the core, some tens of microseconds."""


def _tell() -> None:
    """Tell LLVM where PyTorch's runtime is: a name it cannot find would end the process."""
    for library in sorted((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*")):
        try:
            runtime = ctypes.CDLL(str(library))  # loaded already; its libraries are searched too
            functions = [getattr(runtime, name) for name in _SYMBOLS]
        except (OSError, AttributeError):
            continue
        functions.append(ctypes.CDLL(None).sched_yield)
        for name, function in zip((*_SYMBOLS, "sched_yield"), functions, strict=True):
            llvm.add_symbol(_PREFIX + name, ctypes.cast(function, ctypes.c_void_p).value)
        return
    raise ImportError("PyTorch runs on no OpenMP that compiled code can enter")


_tell()


def _call(builder, name, result, arguments):
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    function = cgutils.get_or_insert_function(builder.module, kind, _PREFIX + name)
    return builder.call(function, arguments)


@intrinsic
def thread(typing_context):
    """Number of the calling thread, from 0."""

    def generate(context, builder, signature, arguments):
        return builder.sext(_call(builder, "omp_get_thread_num", _INT, []), _LONG)

    return types.int64(), generate


@intrinsic
def threads(typing_context):
    """How many threads share the work. May be fewer than were asked for."""

    def generate(context, builder, signature, arguments):
        return builder.sext(_call(builder, "omp_get_num_threads", _INT, []), _LONG)

    return types.int64(), generate


@intrinsic
def _arrive(typing_context, address):
    """Add one to a count of threads; what it was."""

    def generate(context, builder, signature, arguments):
        where = builder.inttoptr(arguments[0], _LONG.as_pointer())
        return builder.atomic_rmw("add", where, _LONG(1), "acq_rel")

    return types.int64(types.int64), generate


@intrinsic
def _read(typing_context, address):
    """A number that other threads write."""

    def generate(context, builder, signature, arguments):
        where = builder.inttoptr(arguments[0], _LONG.as_pointer())
        return builder.load_atomic(where, "acquire", 8)

    return types.int64(types.int64), generate


@intrinsic
def _write(typing_context, address, value):
    """Write a number that other threads read; what was written before it is seen before it."""

    def generate(context, builder, signature, arguments):
        where = builder.inttoptr(arguments[0], _LONG.as_pointer())
        builder.store_atomic(arguments[1], where, "release", 8)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64), generate


@intrinsic
def _pause(typing_context):
    """Tell the core that it waits."""

    def generate(context, builder, signature, arguments):
        arm = "llvm.aarch64.hint", [_INT(1)]
        name, given = arm if cpu.is_arm() else ("llvm.x86.sse2.pause", [])
        kind = ir.FunctionType(_VOID, [_INT] * len(given))
        builder.call(cgutils.get_or_insert_function(builder.module, kind, name), given)
        return context.get_dummy_value()

    return types.none(), generate


@intrinsic
def _give_way(typing_context):
    """Let another thread have this core."""

    def generate(context, builder, signature, arguments):
        _call(builder, "sched_yield", _INT, [])
        return context.get_dummy_value()

    return types.none(), generate


@helper
def meet(place, threads):
    """Wait until so many threads are here; what they wrote before is seen by all.

    OpenMP's own barrier puts threads to sleep within microseconds where a process has more of
    them than cores, as PyTorch's pools make it; waking one takes longer than what it waited for.

    Args:
        place: `MEETING` int64, zeros at first, of these threads alone.
        threads: How many.
    """
    count, turn = place.ctypes.data, place.ctypes.data + 8 * (MEETING // 2)
    before = _read(turn)
    if _arrive(count) == threads - 1:
        _write(count, 0)
        _write(turn, before + 1)
        return
    waited = 0
    while _read(turn) == before:
        waited += 1
        if waited < _PATIENCE:
            _pause()
        else:
            _give_way()


def _lent(context, builder, kind, value):
    """A value whose arrays belong to somebody else. Threads that counted who uses them would
    contend for the counts at every slice."""
    if isinstance(kind, types.Array):
        array = context.make_array(kind)(context, builder, value)
        array.meminfo = cgutils.get_null_value(array.meminfo.type)
        array.parent = cgutils.get_null_value(array.parent.type)
        return array._getvalue()
    if isinstance(kind, types.BaseTuple):
        for at, part in enumerate(kind):
            own = _lent(context, builder, part, builder.extract_value(value, at))
            value = builder.insert_value(value, own, at)
    return value


def crew(work):
    """An intrinsic `run(job, count)`: so many threads call `work(job)`, and it ends when all have.

    Args:
        work: A Python function that can be compiled; its result and errors are lost. It must not
            keep arrays of the job.
    """

    @intrinsic
    def run(typing_context, job, count):
        def generate(context, builder, signature, arguments):
            given = arguments[0]
            shared = cgutils.alloca_once_value(builder, given)
            kind = ir.FunctionType(_VOID, [_ANY])
            name = builder.module.get_unique_name(_PREFIX + work.__name__)
            body = ir.Function(builder.module, kind, name)
            body.linkage = "internal"
            inner = ir.IRBuilder(body.append_basic_block("entry"))
            own = inner.load(inner.bitcast(body.args[0], shared.type))
            own = _lent(context, inner, signature.args[0], own)
            once = types.none(signature.args[0])
            compiled = context.compile_subroutine(inner, work, once)
            context.call_internal_no_propagate(inner, compiled.fndesc, once, [own])
            inner.ret_void()
            asked = builder.trunc(arguments[1], _INT)
            where = builder.bitcast(shared, _ANY)
            _call(builder, "GOMP_parallel", _VOID, [body, where, asked, _INT(0)])
            return context.get_dummy_value()

        return types.none(job, types.int64), generate

    return run

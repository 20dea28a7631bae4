"""How loops are compiled, and where compiled code is kept."""

# Functions are compiled by Numba, not run by Python: types are Numba's.
# mypy: ignore-errors

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

from numba import cfunc, njit, types
from numba.extending import intrinsic

from dartree_core.compiled import cpu

_MATH = {"contract", "reassoc", "arcp", "nsz"}
"""Liberties taken with rounding. Infinities and NaN keep their meaning: noise and overflow bring
both."""
_OPTIONS = {"fastmath": _MATH, "error_model": "numpy", "nogil": True}


def _stamp() -> str:
    """Names these files as they are, and the CPU. Compiled code is kept with the file of the
    function that was called, and a change elsewhere would not be noticed: so the name holds them
    all. Machines that share a home do not share code either."""
    found = hashlib.sha256(cpu.name().encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()[:12]


_STAMP = _stamp()
_NOT_KEPT = (RuntimeError, OSError, EOFError, pickle.UnpicklingError)

helper = njit(**_OPTIONS)
"""For functions called from compiled code."""


exact_helper = njit(error_model="numpy", nogil=True)
"""As `helper`, for functions whose very roundings count."""


@intrinsic
def pointer(typing_context, address):
    """Where `numba.carray` finds an array."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


def entry(*signature):
    """For functions called from Python, compiled at once, or loaded from where they were kept."""

    def compiled(function):
        return _kept(njit, [signature], function)

    return compiled


def callback(*signature):
    """For functions without a result that compiled code calls by their `address`: others are
    compiled anew with each of their callers."""

    def compiled(function):
        return _kept(cfunc, types.none(*signature), function)

    return compiled


def _kept(compiler, signature, function):
    function.__qualname__ = f"{function.__qualname__}_{_STAMP}"
    try:
        return compiler(signature, cache=True, **_OPTIONS)(function)
    except _NOT_KEPT:  # nowhere can be written, the disk is full, or what was kept is damaged
        return compiler(signature, **_OPTIONS)(function)

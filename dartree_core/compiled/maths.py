"""Functions of float32 that vectorise, for compiled loops."""

# Functions are compiled by Numba, not run by Python: types are Numba's.
# mypy: ignore-errors

from __future__ import annotations

import math

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dartree_core.compiled.jit import exact_helper, helper

_f = np.float32
ZERO, ONE = _f(0), _f(1)
_HALF = _f(0.5)
_LEAST, _MOST = _f(-87.0), _f(88.0)
_LOG2_E = _f(math.log2(math.e))
# ln 2 in two parts, the first with so few bits that its multiples are exact.
_LN2_HIGH = _f(math.ldexp(round(math.ldexp(math.log(2), 12)), -12))
_LN2_LOW = _f(math.log(2) - float(_LN2_HIGH))
_COARSE = np.float64(1.5 * 2**16)
_C2, _C3, _C4, _C5, _C6, _C7 = (_f(1 / math.factorial(i)) for i in range(2, 8))


@intrinsic
def with_bits(typing_context, bits):
    """The float32 whose bits are an int32's."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


@exact_helper
def exp(x):
    """e**x of a float32, within 4e-7 of it, by operations that vectorise; 1.6e-38 below -87, and
    1.7e38 above 88. The same bits wherever it is called from."""
    x = min(max(x, _LEAST), _MOST)
    power = np.floor(x * _LOG2_E + _HALF)
    r = x - power * _LN2_HIGH - power * _LN2_LOW
    p = _C7
    p = p * r + _C6
    p = p * r + _C5
    p = p * r + _C4
    p = p * r + _C3
    p = p * r + _C2
    p = p * r + ONE
    p = p * r + ONE
    return p * with_bits((np.int32(power) + np.int32(127)) << np.int32(23))


@exact_helper
def sigmoid(x):
    """1 / (1 + e**-x)."""
    return ONE / (ONE + exp(-x))


@exact_helper
def summand(x):
    """A number from 0 to 1 as a multiple of 2**-36: sums of 2**17 such float64 are exact, whatever
    their order."""
    return (np.float64(x) + _COARSE) - _COARSE


@helper
def root_mean(x, eps):
    """Root of the mean square of a row, `eps` added under it."""
    total = ZERO
    for i in range(len(x)):
        total += x[i] * x[i]
    return math.sqrt(total / np.float32(len(x)) + eps)


@helper
def largest(values):
    """The largest value. NaN keeps the compiler from rearranging a running maximum, so each of
    many lanes has one of its own."""
    lanes = np.full(64, -np.inf, np.float32)
    whole = len(values) // 64 * 64
    for i in range(0, whole, 64):
        for j in range(64):
            lanes[j] = values[i + j] if values[i + j] > lanes[j] else lanes[j]
    for i in range(whole, len(values)):
        lanes[0] = values[i] if values[i] > lanes[0] else lanes[0]
    found = lanes[0]
    for j in range(1, 64):
        found = lanes[j] if lanes[j] > found else found
    return found


@helper
def magnitude(values):
    """The largest absolute value of numbers that are none of them NaN; see `largest`."""
    lanes = np.zeros(64, np.float32)
    whole = len(values) // 64 * 64
    for i in range(0, whole, 64):
        for j in range(64):
            lanes[j] = max(lanes[j], abs(values[i + j]))
    for i in range(whole, len(values)):
        lanes[0] = max(lanes[0], abs(values[i]))
    return largest(lanes)


@helper
def log_total(values):
    """Log of the sum of exponentials."""
    top = largest(values)
    if top == -np.inf:
        return top
    total = ZERO
    for i in range(len(values)):
        total += exp(values[i] - top)
    return top + np.float32(math.log(total))

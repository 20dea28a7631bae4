"""What the CPU has that code is compiled for: this one, unless Numba was told of a smaller one."""

from __future__ import annotations

from functools import cache

import llvmlite.binding as llvm
from numba import config


@cache
def _features() -> dict[str, bool]:
    if config.CPU_NAME or config.CPU_FEATURES or not config.ENABLE_AVX:
        return {}
    return dict(llvm.get_host_cpu_features())


def name() -> str:
    """Tells CPUs apart that code is compiled for."""
    parts = (config.CPU_NAME or llvm.get_host_cpu_name(), config.CPU_FEATURES, config.ENABLE_AVX)
    return " ".join(map(str, (*parts, *sorted(k for k, has in _features().items() if has))))


def is_arm() -> bool:
    """True on 64-bit ARM."""
    return str(llvm.get_default_triple()).startswith(("aarch64", "arm64"))


def is_zen() -> bool:
    """True on AMD's Zen."""
    return str(config.CPU_NAME or llvm.get_host_cpu_name()).startswith("znver")


def fuses() -> bool:
    """True where a multiplication with addition, and widening float16, are one instruction each;
    elsewhere each would be a call."""
    if is_arm():
        return bool(_features())
    return all(_features().get(name, False) for name in ("fma", "f16c"))


def has_long_vectors() -> bool:
    """True with registers of 16 float32, 32 of them."""
    return _features().get("avx512f", False)


def multiplies_bfloat16() -> bool:
    """True with an instruction for bfloat16 products of such registers."""
    return _features().get("avx512bf16", False)


def multiplies_int8() -> bool:
    """True with instructions for 8-bit products of such registers."""
    return multiplies_fours() or _features().get("avx512bw", False)


def multiplies_fours() -> bool:
    """True with one that multiplies four bytes with four, and adds all of them in 32 bits."""
    return _features().get("avx512vnni", False)

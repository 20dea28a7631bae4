"""What this CPU has that compiled code depends on."""

from __future__ import annotations

from functools import cache

import llvmlite.binding as llvm


@cache
def _features() -> dict[str, bool]:
    return dict(llvm.get_host_cpu_features())


def is_arm() -> bool:
    """True on 64-bit ARM."""
    return str(llvm.get_default_triple()).startswith(("aarch64", "arm64"))


def fuses() -> bool:
    """True where a multiplication with addition, and widening float16, are one instruction each;
    elsewhere each would be a call."""
    return is_arm() or all(_features().get(name, False) for name in ("fma", "f16c"))


def has_long_vectors() -> bool:
    """True with registers of 16 float32, 32 of them."""
    return _features().get("avx512f", False)


def multiplies_bytes() -> bool:
    """True with an instruction for 8-bit products of such registers."""
    return _features().get("avx512vnni", False)

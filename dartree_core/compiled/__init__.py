"""What decoding runs in compiled code on a CPU, where Numba is installed.

A pass over a few rows is hundreds of operations of microseconds: as tensor operations they take
longer to call than to compute, and libraries' products cost more for a few rows than reading the
weights takes. So whole passes are compiled, and growing a tree. The tensor code stays the general
path, and the oracle in tests.

From the ground up: `cpu` says what there is, `jit` compiles and keeps, `openmp` enters PyTorch's
threads, `tiles` are innermost loops, `ranking` finds what is best; `products`, `pass_loops` and
`growth` use them, on what `pass_data` and `growth_data` describe; `passes` are what models call.
`reading` runs on one thread, `shared_reading` on all. Nothing here knows a model: passes are given
layers, growing a tree a head's weights.
"""

from __future__ import annotations

import logging
import sys
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

log = logging.getLogger(__name__)


@cache
def available() -> bool:
    """True where loops run. The first call on a machine compiles them for some seconds; they are
    kept on disk beside the package, or in the user's cache where that cannot be written."""
    try:
        import numba
        from numba.core.errors import NumbaError
    except ImportError as error:
        log.info("Decoding takes tensor operations: %s", error)
        return False
    if numba.config.DISABLE_JIT:
        return False
    try:
        import dartree_core.compiled.reading  # noqa: F401
    except NumbaError as error:
        log.warning("Decoding takes tensor operations: Numba could not compile (%s).", error)
        return False
    return True


@cache
def can_share() -> bool:
    """True where compiled code could share PyTorch's threads; compiles nothing."""
    try:
        import numba

        if numba.config.DISABLE_JIT:
            return False
        from dartree_core.compiled import cpu, openmp  # noqa: F401
    except ImportError as error:
        log.info("Products are left to libraries: %s", error)
        return False
    return cpu.fuses()


@cache
def shares() -> bool:
    """True where compiled code does whole products, passes and trees, shared among PyTorch's
    threads. The first call on a machine compiles it, as with `available`."""
    if not (available() and can_share()):
        return False
    try:
        import dartree_core.compiled.growth
        import dartree_core.compiled.pass_loops
        import dartree_core.compiled.shared_reading  # noqa: F401
    except Exception as error:
        # A new Numba, LLVM or CPU: decoding works without.
        log.warning("Passes take tensor operations: they could not be compiled (%r).", error)
        return False
    return True


def sharing() -> bool:
    """True where `shares` was asked, and is true; nobody should wait for that in between."""
    return "dartree_core.compiled.pass_loops" in sys.modules


def loaded() -> ModuleType | None:
    """What reads targets, by as many threads as can, where someone had loops compiled; nobody
    should wait for that in between."""
    shared = sys.modules.get("dartree_core.compiled.shared_reading")
    return shared or sys.modules.get("dartree_core.compiled.reading")


def fits(tensor: Tensor) -> bool:
    """True for tensors that loops can work on: float32 on a CPU."""
    return tensor.device.type == "cpu" and tensor.dtype == torch.float32

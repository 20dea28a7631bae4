"""What decoding runs as compiled loops on a CPU, where Numba is installed.

A pass over a few rows is hundreds of operations of microseconds: as tensor operations they take
longer to call than to compute. Products stay with their kernels; what lies between them is
compiled. The tensor code stays the general path, and the oracle in tests.

Nothing here knows a model: layers are given their parts, growing a tree a head's weights.
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
        import dartree_core.compiled.loops  # noqa: F401
    except NumbaError as error:
        log.warning("Decoding takes tensor operations: Numba could not compile (%s).", error)
        return False
    return True


def loaded() -> ModuleType | None:
    """The loops, where someone had them compiled; nobody should wait for that in between."""
    return sys.modules.get("dartree_core.compiled.loops")


def fits(tensor: Tensor) -> bool:
    """True for tensors that loops can work on: float32 on a CPU."""
    return tensor.device.type == "cpu" and tensor.dtype == torch.float32

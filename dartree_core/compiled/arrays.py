"""Arrays for compiled code: of weights, and to work in."""

from __future__ import annotations

import math
import mmap
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

Array: TypeAlias = np.ndarray[Any, Any]

_TYPES = {
    torch.float32: np.float32,
    torch.float16: np.float16,
    torch.bfloat16: np.uint16,  # NumPy has no name for it
    torch.int8: np.int8,
}


def array(x: Tensor) -> Array:
    """A float32 array of a tensor, contiguous; the same memory where that is possible."""
    out: Array = x.detach().float().contiguous().numpy()
    return out


def room(*shape: int, dtype: torch.dtype = torch.float32) -> Array:
    """Memory that starts a page, and so a line of the cache: no vector lies on two lines. It goes
    back to the system with its last array; an allocator would keep what weights were moved from.
    """
    size = math.prod(shape) * dtype.itemsize
    # A forked process must not write into these; Windows knows no such pages, and no fork.
    own = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    pages = mmap.mmap(-1, max(1, size), **own)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    found: Array = np.frombuffer(pages, _TYPES[dtype], math.prod(shape)).reshape(shape)
    return found

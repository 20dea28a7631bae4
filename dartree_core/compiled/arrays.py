"""Arrays for compiled code: of weights, and to work in."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

Array: TypeAlias = np.ndarray[Any, Any]

_PAGE = 4096
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
    """Memory that starts a page, and so a line of the cache: no vector lies on two lines. It is
    not yet written."""
    size = math.prod(shape) * dtype.itemsize
    memory: Array = np.empty(size + _PAGE, np.uint8)
    start = -memory.ctypes.data % _PAGE
    found: Array = memory[start : start + size].view(_TYPES[dtype]).reshape(shape)
    return found

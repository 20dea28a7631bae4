"""Weights as arrays."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

Array: TypeAlias = np.ndarray[Any, Any]


def array(x: Tensor) -> Array:
    """A float32 array of a tensor, contiguous; the same memory where that is possible."""
    out: Array = x.detach().float().contiguous().numpy()
    return out


def room(*shape: int, dtype: torch.dtype = torch.float32) -> Array:
    """Zeros that start a line of the cache, so that no vector lies on two of them."""
    out: Array = torch.zeros(shape, dtype=dtype).numpy()
    assert out.ctypes.data % 64 == 0 or not out.size
    return out

"""Weights as arrays."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

Array: TypeAlias = np.ndarray[Any, Any]


def array(x: Tensor) -> Array:
    """A float32 array of a tensor, contiguous; the same memory where that is possible."""
    out: Array = x.detach().float().contiguous().numpy()
    return out

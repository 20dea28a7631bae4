"""What a decoder layer does between its products, as PyTorch operations."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor


class Arithmetic:
    """The small operations of a Llama-type layer; subclasses fuse them."""

    name = ""
    """For display; empty for PyTorch's own operations."""

    def add_norm(
        self, x: Tensor, delta: Tensor | None, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """The residual sum `x + delta` `[n, H]`, and its root-mean-square norm."""
        if delta is not None:
            x = x + delta
        return x, rms_norm(x, weight, eps)

    def gated(self, gate_up: Tensor) -> Tensor:
        """`silu(gate) * up` of `[n, 2 * M]`: `[n, M]`."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Root-mean-square norm over the last dimension, same shape and dtype as `x`; with no
    weight, a tensor that may be changed in place.

    PyTorch has one kernel for it on CUDA, and ten small ones on a CPU, where these five are equal
    to them up to rounding. Like those, they compute a row as they would compute it alone.
    """
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return F.rms_norm(x, x.shape[-1:], weight, eps)
    mean = torch.linalg.vector_norm(x, dim=-1, keepdim=True).mul_(_scalar(x.shape[-1] ** -0.5))
    out = x.div(mean.hypot_(_scalar(eps**0.5)))
    return out if weight is None else out.mul_(weight)


@cache
def _scalar(value: float) -> Tensor:
    """A tensor, since PyTorch would make one of a number at every call."""
    return torch.tensor(value)

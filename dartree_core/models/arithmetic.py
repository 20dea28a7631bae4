"""What a decoder layer does between its products, as PyTorch operations."""

from __future__ import annotations

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
        return x, F.rms_norm(x, weight.shape, weight, eps)

    def gated(self, gate_up: Tensor) -> Tensor:
        """`silu(gate) * up` of `[n, 2 * M]`: `[n, M]`."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up

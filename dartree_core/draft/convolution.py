"""The convolutions of DFlash2: every sublayer sees, and says, a mix of adjacent block rows.

A row's coefficients are learned per channel plus a correction that one projection of the row
gives per group of channels, for the sublayer's input and its output at once. Taps reach back
within the block only (z-lab's `dflash` package).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dartree_core.draft.spec import DraftSpec


class DynamicConvolution(nn.Module):
    """A causal convolution over block rows `[..., n, H]`, before and after a sublayer."""

    def __init__(self, spec: DraftSpec) -> None:
        super().__init__()
        self.taps, self.group = spec.conv_taps, spec.conv_group
        groups = spec.hidden_size // self.group
        self.base_kernel = nn.Parameter(torch.empty(2, self.taps, spec.hidden_size))
        self.kernel_projection = nn.Linear(spec.hidden_size, 2 * self.taps * groups, bias=False)

    @classmethod
    def of(cls, spec: DraftSpec) -> DynamicConvolution | None:
        """What `spec` puts around a sublayer: None for drafters without convolutions."""
        return cls(spec) if spec.conv_taps else None

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """`sublayer` between its two convolutions; same shape as `x`."""
        kernels = self.kernel_projection(x).view(*x.shape[:-1], 2, self.taps, -1)
        inner = sublayer(self._mix(x, kernels[..., 0, :, :], self.base_kernel[0]))
        return self._mix(inner, kernels[..., 1, :, :], self.base_kernel[1])

    def _mix(self, x: Tensor, dynamic: Tensor, base: Tensor) -> Tensor:
        """`x` `[..., n, H]`, corrections `[..., n, taps, groups]`, `base` `[taps, H]`."""
        out = torch.zeros_like(x)
        for tap in range(self.taps):
            earlier = F.pad(x, (0, 0, tap, 0))[..., : x.shape[-2], :]
            weight = base[tap] + dynamic[..., tap, :].repeat_interleave(self.group, dim=-1)
            out = torch.addcmul(out, weight, earlier)
        return out


def convolved(
    around: DynamicConvolution | None, x: Tensor, sublayer: Callable[[Tensor], Tensor]
) -> Tensor:
    """`sublayer(x)`, convolved where there is a convolution around it."""
    if around is None:
        return sublayer(x)
    out: Tensor = around(x, sublayer)
    return out

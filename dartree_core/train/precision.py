"""Which matrix-product precision training uses, and the autocast context for it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dartree_core.train.recipe import Precision


def resolve_precision(name: Precision, device: torch.device) -> torch.dtype:
    """The dtype of matrix products: bfloat16 for "auto" where the hardware has it."""
    if name == "auto":
        return torch.bfloat16 if _fast_bfloat16(device) else torch.float32
    return torch.bfloat16 if name == "bfloat16" else torch.float32


@contextmanager
def autocast(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Matrix products in `dtype`; sums, norms and weights stay float32."""
    enabled = dtype is torch.bfloat16
    with (
        warnings.catch_warnings(),
        torch.autocast(device.type, dtype=torch.bfloat16, enabled=enabled),
    ):
        # Norms of bfloat16 rows by float32 weights are meant; they only miss a fused kernel.
        warnings.filterwarnings("ignore", message="Mismatch dtype between input and weight")
        yield


def _fast_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu":
        return False
    # Without bfloat16 arithmetic a CPU emulates it, several times slower than float32.
    has = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    return bool(has())

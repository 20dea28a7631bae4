"""What a machine could do, and how much of that a pass does."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from dartree_core.models.lean import LeanTarget

_REPEATS = 10


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What the device reaches on the simplest work there is.

    Attributes:
        bytes_per_s: Read and written by a large copy.
        flop_per_s: Of a large square matrix product in the weights' dtype.
    """

    bytes_per_s: float
    flop_per_s: float


@dataclass(frozen=True, slots=True)
class PassWork:
    """What one target pass has to move and to compute at least.

    Attributes:
        bytes: All weights once, and all keys and values in reach once.
        flop: Multiplications and additions of all products and of attention.
    """

    bytes: int
    flop: int


def seconds(run: Callable[[], object], device: torch.device, repeats: int = _REPEATS) -> float:
    """Median seconds of `run`, on the device's own clock where it has one."""
    run()
    times = []
    for _ in range(repeats):
        if device.type == "cuda":
            with torch.cuda.device(device):
                began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
                began.record()
                run()
                ended.record()
                ended.synchronize()
            times.append(began.elapsed_time(ended) / 1e3)
        else:
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
    return float(statistics.median(times))


@torch.inference_mode()
def ceilings(device: torch.device, dtype: torch.dtype, *, scale: float = 1.0) -> Ceilings:
    """Measure the device.

    Args:
        device: The device.
        dtype: Of the matrix product.
        scale: Below 1, use smaller tensors: for tests, where figures do not matter.
    """
    count = int(scale * (1 << 30))  # 1 GiB: far more than any cache holds
    source = torch.zeros(count, dtype=torch.uint8, device=device)
    copy = torch.empty_like(source)
    copying = seconds(lambda: copy.copy_(source), device)
    side = max(64, int(scale * 8192))
    a = torch.randn(side, side, device=device).to(dtype)
    product = torch.empty_like(a)
    multiplying = seconds(lambda: torch.mm(a, a, out=product), device)
    return Ceilings(2 * count / copying, 2 * side**3 / multiplying)


def pass_work(target: LeanTarget, rows: int, context: int) -> PassWork:
    """The least work of a pass over `rows` rows behind `context` committed positions."""
    config, width = target.config, target.num_heads * target.head_dim
    kv = target.kv_heads * target.head_dim
    hidden = target.hidden_size
    layer = hidden * (2 * width + 2 * kv + 3 * config.intermediate_size)
    products = target.num_layers * layer + hidden * target.vocab_size
    cached = 2 * target.num_layers * kv * (context + rows)
    item = torch.empty(0, dtype=target.weight_dtype).element_size()
    cached_item = torch.empty(0, dtype=target.dtype).element_size()
    attention = 4 * target.num_layers * width * rows * (context + rows)
    return PassWork(products * item + cached * cached_item, 2 * rows * products + attention)

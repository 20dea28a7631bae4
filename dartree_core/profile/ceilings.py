"""What this machine reaches at best: memory traffic and arithmetic, measured in a moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F

from dartree_core.engine.costs import identity
from dartree_core.models.kernels import KERNELS
from dartree_core.models.lean import LeanTarget
from dartree_core.models.memory import Memory
from dartree_core.models.room import free_bytes
from dartree_core.models.target import Target

_REPEATS = 5


@dataclass(frozen=True, slots=True)
class Load:
    """Work that is large enough for its kind of device.

    Attributes:
        copied: Bytes copied at a time: more than caches hold.
        size, rows: Of a product in which arithmetic, not memory or launching, takes the time.
    """

    copied: int
    size: int
    rows: int


_CPU = Load(64 * 2**20, 2048, 256)
_ACCELERATOR = Load(2**30, 8192, 4096)


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Measured limits.

    Attributes:
        copy_bytes_s: Bytes read plus bytes written a second by a large copy.
        flops_s: Floating-point operations a second of a large product, with the kernel and the
            dtype that the target's products use.
    """

    copy_bytes_s: float
    flops_s: float


def ceilings_of(target: Target, memory: Memory) -> Ceilings:
    """Limits for this target's device, threads and kernel: the best seen so far.

    A busy machine shows less than it can do, never more, so every measurement is kept that is
    better than those before.
    """
    key = f"limits | {identity(target)}"
    found = measure(target)
    known = memory.recall(key)
    if isinstance(known, dict):
        try:
            earlier = Ceilings(float(known["copy_bytes_s"]), float(known["flops_s"]))
        except (KeyError, TypeError, ValueError):
            earlier = found
        found = Ceilings(
            max(found.copy_bytes_s, earlier.copy_bytes_s), max(found.flops_s, earlier.flops_s)
        )
    memory.remember(key, asdict(found))
    return found


@torch.inference_mode()
def measure(target: Target, load: Load | None = None) -> Ceilings:
    """Time a copy and a product on the target's device; `load` None takes what fits its kind."""
    device = target.device
    load = load or (_CPU if device.type == "cpu" else _ACCELERATOR)
    free = free_bytes(device)
    copied = load.copied if free is None else max(2**20, min(load.copied, free // 8))
    size, rows = load.size, load.rows
    source = torch.ones(copied, dtype=torch.uint8, device=device)
    goal = torch.empty_like(source)
    seconds = _fastest(lambda: goal.copy_(source), device)
    weight = torch.randn(size, size, device=device).to(target.weight_dtype)
    x = torch.randn(rows, size, device=device).to(target.dtype)
    kernel = target.kernel if isinstance(target, LeanTarget) else None
    run = KERNELS[kernel](weight, None) if kernel else lambda rows: F.linear(rows, weight)
    return Ceilings(
        copy_bytes_s=2 * copied / seconds,
        flops_s=2 * rows * size * size / _fastest(lambda: run(x), device),
    )


def _fastest(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of the fastest of a few runs; slower ones were interrupted."""
    work()
    times = []
    for _ in range(_REPEATS):
        settle(device)
        began = time.perf_counter()
        work()
        settle(device)
        times.append(time.perf_counter() - began)
    return min(times)


def settle(device: torch.device) -> None:
    """Wait until an accelerator has done what it was told; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()

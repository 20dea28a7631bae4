"""Facts about this machine that PyTorch does not tell: processor, memory, container limits.

Linux has them in files; elsewhere what cannot be known is None, never guessed.
"""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Machine:
    """Processor and memory.

    Attributes:
        processor: Model name.
        cpus: Processors this process may run on.
        cpu_quota: CPUs' worth of time a container allows, or None without a limit.
        memory: Bytes of memory, at most what a container allows.
        available: Bytes that are free or can be freed.
    """

    processor: str
    cpus: int
    cpu_quota: float | None
    memory: int | None
    available: int | None


def look(root: Path = Path("/")) -> Machine:
    """Read the facts; `root` stands in for `/` in tests."""
    memory, available = _memory(root)
    limit, used = _cgroup_memory(root)
    if limit is not None and (memory is None or limit < memory):
        memory = limit
        available = min(limit - (used or 0), limit if available is None else available)
    return Machine(_processor(root), _cpus(), _cpu_quota(root), memory, available)


def _processor(root: Path) -> str:
    with suppress(OSError):
        for line in (root / "proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip().lower() in ("model name", "cpu model") and value.strip():
                return value.strip()
    return platform.processor() or platform.machine() or "unknown"


def _cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory(root: Path) -> tuple[int | None, int | None]:
    values: dict[str, int] = {}
    with suppress(OSError, ValueError, IndexError):
        for line in (root / "proc/meminfo").read_text("ascii").splitlines():
            key, _, value = line.partition(":")
            values[key] = int(value.split()[0]) * 1024
    if "MemTotal" in values:
        return values["MemTotal"], values.get("MemAvailable")
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), None
    return None, None


def _cpu_quota(root: Path) -> float | None:
    with suppress(OSError, ValueError):
        quota, period = (root / "sys/fs/cgroup/cpu.max").read_text("ascii").split()
        return None if quota == "max" else int(quota) / int(period)
    with suppress(OSError, ValueError):
        folder = root / "sys/fs/cgroup/cpu"
        quota_us = int((folder / "cpu.cfs_quota_us").read_text("ascii"))
        period_us = int((folder / "cpu.cfs_period_us").read_text("ascii"))
        return quota_us / period_us if quota_us > 0 else None
    return None


def _cgroup_memory(root: Path) -> tuple[int | None, int | None]:
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with suppress(OSError, ValueError):
            text = (root / "sys/fs/cgroup" / limit).read_text("ascii").strip()
            return int(text), int((root / "sys/fs/cgroup" / used).read_text("ascii"))
    return None, None

"""How many threads a CPU target should use: measured, since the answer depends on who else runs.

A decoding step is many short parallel sections. On a busy machine one late thread stalls each
of them, and one thread alone can be several times faster than two.
"""

from __future__ import annotations

import os
import time

import torch

from dartree_core.models.target import Target

_ROWS = (1, 8)
_REPEATS = 5


def tune_threads(target: Target) -> int:
    """Set PyTorch's thread count to the fastest for plain steps and small trees of `target`.

    Does nothing on other devices, or where the user has set `OMP_NUM_THREADS`.

    Returns:
        The number of threads in use.
    """
    most = torch.get_num_threads()
    if target.device.type != "cpu" or "OMP_NUM_THREADS" in os.environ or most == 1:
        return most
    counts = []
    count = most
    while count >= 1:
        counts.append(count)
        count //= 2
    best = min(counts, key=lambda n: _seconds(target, n))
    torch.set_num_threads(best)
    return best


def _seconds(target: Target, threads: int) -> float:
    """Time of a plain step plus that of a small verification, with `threads` threads: of each the
    fastest, since slower ones were interrupted."""
    torch.set_num_threads(threads)
    total = 0.0
    for rows in _ROWS:
        tokens = torch.zeros(rows, dtype=torch.int64)
        cache = target.new_cache()
        target.forward(tokens, cache)
        times = []
        for _ in range(_REPEATS):
            began = time.perf_counter()
            target.forward(tokens, cache)
            times.append(time.perf_counter() - began)
        total += min(times)
    return total

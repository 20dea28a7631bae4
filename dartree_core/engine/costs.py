"""What a target pass costs by its number of rows: measured once, remembered, kept up to date."""

from __future__ import annotations

import math
import platform
import statistics
import time
from bisect import bisect_left
from collections.abc import Mapping
from itertools import pairwise

import torch

from dartree_core.models.memory import Memory
from dartree_core.models.target import Target

ROWS = (1, 2, 3, 5, 9, 17, 33, 65)
"""Sizes measured: a plain step, then trees of 1 to 64 nodes with their root."""
_CONTEXT = 256
_REPEATS = 4
_FRESH = 0.05
_COMMON = 0.03
"""Weights of a new observation against the estimates so far: of the same size, of all sizes."""
_SURPRISE = 1.25
"""Most that one observation may differ from the estimate, as a factor; more counts as this."""
_PATIENCE = 3
"""So many surprises in a row, all to the same side, are no accident and count in full."""


class PassCosts:
    """Milliseconds of a pass over n rows, interpolated between measured sizes.

    Args:
        ms: Rows to milliseconds, at least for one row.
    """

    def __init__(self, ms: Mapping[int, float]) -> None:
        self._rows = sorted(ms)
        self._ms = {n: ms[n] for n in self._rows}
        self._surprises: list[float] = []

    def __call__(self, rows: int) -> float:
        """Expected milliseconds of a pass over `rows` rows."""
        at = bisect_left(self._rows, rows)
        if at == len(self._rows):
            last = self._rows[-1]
            return self._ms[last] * rows / last
        high = self._rows[at]
        if at == 0 or high == rows:
            return self._ms[high]
        low = self._rows[at - 1]
        share = (rows - low) / (high - low)
        return self._ms[low] * (1 - share) + self._ms[high] * share

    def observe(self, rows: int, ms: float) -> None:
        """A pass over `rows` rows took `ms`: move the estimates towards it.

        The nearest sizes move most; all others follow a little, since what makes one size slow,
        a busy machine or a longer context, makes every size slow.
        """
        factor = ms / self(rows)
        if 1 / _SURPRISE <= factor <= _SURPRISE:
            self._surprises.clear()
            self._move(rows, factor, _FRESH, _COMMON)
            return
        # One pass that was interrupted says little about the next.
        self._move(rows, min(max(factor, 1 / _SURPRISE), _SURPRISE), _FRESH, _COMMON)
        if self._surprises and (self._surprises[-1] > 1) != (factor > 1):
            self._surprises.clear()
        self._surprises.append(factor)
        if len(self._surprises) == _PATIENCE:
            self._move(rows, statistics.median(self._surprises), 0.5, 0.5)
            self._surprises.clear()

    def _move(self, rows: int, factor: float, fresh: float, common: float) -> None:
        """Multiply the sizes nearest to `rows`, and all sizes, by weighted shares of `factor`."""
        for n in self._rows:
            self._ms[n] *= 1 + common * (factor - 1)
        at = min(bisect_left(self._rows, rows), len(self._rows) - 1)
        near = {self._rows[at]: 1.0}
        if at > 0 and self._rows[at] != rows:
            low, high = self._rows[at - 1], self._rows[at]
            share = min(1.0, (rows - low) / (high - low))
            near = {low: 1 - share, high: share}
        for n, weight in near.items():
            self._ms[n] *= 1 + fresh * weight * (factor - 1)
        self.mend()

    def mend(self) -> None:
        """Lower estimates that cannot be true: what they were made from was interrupted.

        No pass takes longer than one over more rows, or drafting would look free; and none longer
        than several over fewer, or trees of a size nobody has tried since would never be tried.
        """
        most = math.inf
        for n in reversed(self._rows):
            most = self._ms[n] = min(self._ms[n], most)
        for fewer, n in pairwise(self._rows):
            self._ms[n] = min(self._ms[n], self._ms[fewer] * n / fewer)

    def to_dict(self) -> dict[str, float]:
        """Rows (as text) to milliseconds."""
        return {str(n): round(ms, 4) for n, ms in self._ms.items()}


def measure(target: Target) -> PassCosts:
    """Time passes of every size in `ROWS` behind a short context."""
    cache = target.new_cache()
    device = target.device
    context = torch.zeros(
        min(_CONTEXT, target.max_positions // 2), dtype=torch.int64, device=device
    )
    target.forward(context, cache, last_only=True)
    cache.commit(torch.arange(len(context), device=device))
    sizes = [n for n in ROWS if cache.length + n <= target.max_positions]
    found = dict.fromkeys(sizes, math.inf)
    # Size after size, again and again: whatever else the machine does meanwhile then hits every
    # size in one repeat, and not one size in every repeat. The first is a warm-up.
    for repeat in range(_REPEATS + 1):
        for rows in sizes:
            tokens = torch.zeros(rows, dtype=torch.int64, device=device)
            _wait(device)
            began = time.perf_counter()
            target.forward(tokens, cache)
            _wait(device)
            if repeat:
                # The fastest run is what a pass costs; slower ones were interrupted.
                found[rows] = min(found[rows], (time.perf_counter() - began) * 1e3)
    costs = PassCosts(found)
    costs.mend()
    return costs


def costs_of(target: Target, memory: Memory) -> PassCosts:
    """Costs of this target on this machine, from `memory` if they were measured before.

    A measurement counts for one device, dtype, code path, thread count, PyTorch version and
    model; anything else measures anew.
    """
    costs = recalled_costs(target, memory)
    if costs is None:
        costs = measure(target)
        remember_costs(target, costs, memory)
    return costs


def recalled_costs(target: Target, memory: Memory) -> PassCosts | None:
    """Costs as `memory` has them, or None."""
    known = memory.recall(_key(target))
    if not isinstance(known, dict) or not known:
        return None
    costs = PassCosts({int(n): float(ms) for n, ms in known.items()})
    costs.mend()
    return costs


def remember_costs(target: Target, costs: PassCosts, memory: Memory) -> None:
    """Keep costs as they are now for later processes: a measurement on a busy machine mends."""
    memory.remember(_key(target), costs.to_dict())


def identity(target: Target) -> str:
    """Everything a measurement of this target depends on, as text."""
    device = target.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    shape = f"{target.num_layers} x {target.hidden_size}, {target.vocab_size} tokens"
    return " | ".join(
        str(part)
        for part in (
            target.label,
            target.revision,
            shape,
            device,
            name or platform.machine(),
            target.weight_dtype,
            target.path,
            torch.get_num_threads(),
            torch.__version__,
        )
    )


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _key(target: Target) -> str:
    return f"costs | {identity(target)}"

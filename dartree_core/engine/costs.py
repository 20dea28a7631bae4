"""What a target pass costs by its number of rows: measured once, remembered, kept up to date."""

from __future__ import annotations

import math
import platform
import statistics
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch

from dartree_core.models.memory import Memory
from dartree_core.models.target import Target

ROWS = (1, 2, 3, 5, 9, 17, 33, 65)
"""Sizes measured: a plain step, then trees of 1 to 64 nodes with their root."""
_FEW = (1, 5, 17)
"""Sizes timed where all would take too long, or where what is remembered is only checked."""
_SLOW_MS = 100.0
"""A plain step that takes longer leaves time for few sizes, once each."""
_CONTEXT = 256
_REPEATS = 4
_DOUBT = 1.3
"""Factor by which a size may have come to cost more or less, in plain steps, since it was timed;
what was learnt while something else ran is off by more, and would keep drafts from being tried."""
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
    """Time passes of every size in `ROWS` behind a short context; of a few where that is slow."""
    timing = _Timing(target)
    found = timing.fastest((1,), 1)
    found = timing.fastest(ROWS, _REPEATS) if found[1] < _SLOW_MS else timing.fastest(_FEW, 1)
    costs = PassCosts(found)
    costs.mend()
    return costs


def hold(costs: PassCosts, target: Target) -> bool:
    """Whether passes still cost what `costs` says, in plain steps; a few passes tell."""
    slow = costs(1) > _SLOW_MS
    found = _Timing(target).fastest(_FEW[:2] if slow else _FEW, 1 if slow else 2)
    factors = [found[n] / found[1] / (costs(n) / costs(1)) for n in found]
    return all(1 / _DOUBT <= factor <= _DOUBT for factor in factors)


class _Timing:
    """Passes of one target behind a short context, timed."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._device = target.device
        self._cache = target.new_cache()
        context = torch.zeros(
            min(_CONTEXT, target.max_positions // 2), dtype=torch.int64, device=self._device
        )
        target.forward(context, self._cache, last_only=True)
        self._cache.commit(torch.arange(len(context), device=self._device))

    def fastest(self, sizes: Sequence[int], repeats: int) -> dict[int, float]:
        """Rows to the milliseconds of the fastest of so many passes, of sizes that there is room
        for. The fastest is what a pass costs; slower ones were interrupted."""
        room = self._target.max_positions - self._cache.length
        found = {n: math.inf for n in sizes if n <= room}
        # Size after size, again and again: whatever else the machine does meanwhile then hits
        # every size in one repeat, and not one size in every repeat.
        for repeat in range(repeats + 1):
            for rows in found:
                ms = self._pass(rows)
                # The first is a warm-up, but for slow passes, beside which that is nothing.
                if repeat or ms > _SLOW_MS:
                    found[rows] = min(found[rows], ms)
            if not repeat and all(ms < math.inf for ms in found.values()):
                break
        return found

    def _pass(self, rows: int) -> float:
        tokens = torch.zeros(rows, dtype=torch.int64, device=self._device)
        _wait(self._device)
        began = time.perf_counter()
        self._target.forward(tokens, self._cache)
        _wait(self._device)
        return (time.perf_counter() - began) * 1e3


def costs_of(target: Target, memory: Memory, known: PassCosts | None = None) -> PassCosts:
    """Costs of this target on this machine: `known`, or what `memory` has, if they still hold,
    else measured.

    A measurement counts for one device, dtype, code path, thread count, PyTorch version and
    model; anything else measures anew.
    """
    costs = known or recalled_costs(target, memory)
    if costs is None or not hold(costs, target):
        costs = measure(target)
        remember_costs(target, costs, memory)
    return costs


def recalled_costs(target: Target, memory: Memory) -> PassCosts | None:
    """Costs as `memory` has them, or None; whatever is not such a table counts as nothing."""
    known = memory.recall(_key(target))
    try:
        table = {int(n): float(ms) for n, ms in known.items()} if known else {}
    except (AttributeError, TypeError, ValueError):
        return None
    # A comparison with NaN is false.
    if 1 not in table or not all(n > 0 and 0 < ms < 1e9 for n, ms in table.items()):
        return None
    costs = PassCosts(table)
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

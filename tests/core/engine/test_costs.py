"""Pass costs: measured, interpolated, kept up to date, remembered."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dartree_core.engine.costs import (
    ROWS,
    PassCosts,
    costs_of,
    hold,
    measure,
    recalled_costs,
    remember_costs,
)
from dartree_core.models import Target
from dartree_core.models.memory import Memory
from tests.core import tiny


@given(ms=st.lists(st.floats(0.1, 1000), min_size=2, max_size=8), rows=st.integers(1, 100))
def test_costs_between_measured_sizes_lie_between(ms: list[float], rows: int) -> None:
    sizes = ROWS[: len(ms)]
    costs = PassCosts(dict(zip(sizes, ms, strict=True)))
    for size, wanted in zip(sizes, ms, strict=True):
        assert costs(size) == pytest.approx(wanted)
    below = max((s for s in sizes if s <= rows), default=sizes[0])
    above = min((s for s in sizes if s >= rows), default=sizes[-1])
    if rows <= sizes[-1]:
        low, high = sorted((costs(below), costs(above)))
        assert low - 1e-6 <= costs(rows) <= high + 1e-6


def test_costs_follow_what_is_observed() -> None:
    costs = PassCosts({1: 10.0, 9: 20.0, 65: 100.0})
    for _ in range(200):
        costs.observe(9, 40.0)
    assert costs(9) == pytest.approx(40.0, rel=0.05)
    assert costs(1) > 10.0
    once = PassCosts({1: 10.0})
    once.observe(1, 1e6)
    assert once(1) < 12.0


def test_interrupted_passes_do_not_make_more_rows_look_cheaper() -> None:
    costs = PassCosts({1: 10.0, 3: 12.0, 9: 20.0})
    for _ in range(12):
        costs.observe(1, 80.0)
        assert costs(1) <= costs(3) <= costs(9)


def test_more_rows_never_seem_to_cost_more_than_several_passes(tmp_path: Any) -> None:
    """A size measured while something else ran, or remembered from then, and not tried since."""
    costs = PassCosts({1: 18.0, 9: 35.0, 17: 400.0, 33: 180.0})
    costs.mend()
    assert costs(9) == 35.0
    assert costs(17) == pytest.approx(35.0 * 17 / 9)
    assert costs(17) <= costs(33) <= 2 * costs(17)
    memory = Memory(tmp_path / "measured.json")
    target = tiny.trained("tied").target
    remember_costs(target, PassCosts({1: 18.0, 9: 35.0, 17: 400.0}), memory)
    recalled = recalled_costs(target, memory)
    assert recalled is not None
    assert recalled(17) == pytest.approx(35.0 * 17 / 9)


def lasting(
    monkeypatch: pytest.MonkeyPatch, seconds: Callable[[int, int], float]
) -> tuple[Target, list[int]]:
    """A target whose passes last as long as told by their rows and their number, and the rows of
    the passes so far."""
    target = tiny.trained("tied").target
    passes: list[int] = []
    now = [0.0]
    forward = type(target).forward

    def timed(tokens: Any, cache: Any, **options: Any) -> Any:
        now[0] += seconds(len(tokens), len(passes))
        passes.append(len(tokens))
        return forward(target, tokens, cache, **options)

    monkeypatch.setattr(target, "forward", timed)
    monkeypatch.setattr("dartree_core.engine.costs.time.perf_counter", lambda: now[0])
    return target, passes


def test_a_busy_moment_spoils_no_size(monkeypatch: pytest.MonkeyPatch) -> None:
    # Passes 12 to 19 take ten times as long, whichever they are.
    target, _ = lasting(
        monkeypatch, lambda rows, at: (10.0 if 12 <= at < 20 else 1.0) * 1e-3 * (10 + rows)
    )
    costs = measure(target)
    assert [costs(n) for n in ROWS] == pytest.approx([10.0 + n for n in ROWS])


def test_a_slow_target_is_measured_by_a_few_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    target, passes = lasting(monkeypatch, lambda rows, at: 1.0 + 0.1 * rows)
    costs = measure(target)
    assert costs(1) == pytest.approx(1100)
    assert costs(9) == pytest.approx(1900)
    assert len(passes) - 1 <= 4  # the first reads the context
    before = len(passes)
    assert hold(costs, target)
    assert len(passes) - before - 1 <= 2


@pytest.mark.parametrize("factor", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("rows", [5, 17])
def test_what_was_learnt_at_another_time_is_checked(
    factor: float, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain turns on a machine that has become quiet make a step cheaper, and nothing else."""
    target, _ = lasting(monkeypatch, lambda rows, at: 1e-3 * (10 + rows))
    memory = Memory(tmp_path / "measured.json")
    learnt = {n: 3 * (10.0 + n) for n in ROWS}
    learnt = {n: ms * (factor if n >= rows else 1) for n, ms in learnt.items()}
    remember_costs(target, PassCosts(learnt), memory)
    found = costs_of(target, memory)
    assert found(9) / found(1) == pytest.approx(19 / 11, rel=0.01)
    # Slower or faster as a whole is no reason to measure.
    assert found(1) == pytest.approx(33.0 if factor == 1 else 11.0)
    kept = recalled_costs(target, memory)
    assert kept is not None
    assert kept(17) == pytest.approx(found(17), rel=1e-4)


@pytest.mark.parametrize(
    "entry",
    [
        *({"1": 0}, {"1": None}, {"x": 1.0}, {"1": "a"}, {"0": 1.0}, {"5": 1.0}, {"1": -2.0}),
        *({"1": float("nan")}, {"1": 1.0, "5": float("inf")}, [1.0], "costs", 7),
    ],
    ids=str,
)
def test_a_damaged_entry_only_costs_a_measurement(entry: Any, tmp_path: Path) -> None:
    target = tiny.trained("tied").target
    memory = Memory(tmp_path / "measured.json")
    remember_costs(target, PassCosts({1: 1.0}), memory)
    memory.remember(next(iter(memory._read())), entry)
    assert recalled_costs(target, memory) is None
    assert costs_of(target, memory)(1) > 0


def test_measured_costs_are_remembered(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny.trained("tied").target
    memory = Memory(tmp_path / "measured.json")
    first = costs_of(target, memory)
    assert set(first.to_dict()) == {str(n) for n in ROWS}
    monkeypatch.setattr("dartree_core.engine.costs.hold", lambda *_: True)
    monkeypatch.setattr("dartree_core.engine.costs.measure", None)
    assert costs_of(target, memory).to_dict() == first.to_dict()


def test_more_rows_never_seem_to_cost_less() -> None:
    costs = measure(tiny.trained("tied").target)
    found = [costs(n) for n in ROWS]
    assert found == sorted(found)


def test_a_short_context_is_measured_as_far_as_it_goes() -> None:
    target = tiny.target("llama")
    assert target.max_positions == 128
    assert measure(target).to_dict().keys() >= {"1", "33"}


def test_interruptions_do_not_make_a_pass_seem_dear() -> None:
    costs = PassCosts({1: 10.0, 9: 20.0, 65: 100.0})
    dice = random.Random(5)
    for _ in range(500):
        rows = dice.choice((1, 9))
        slow = dice.uniform(2, 6) if dice.random() < 0.05 else 1.0
        costs.observe(rows, (10.0 if rows == 1 else 20.0) * slow)
    assert costs(1) == pytest.approx(10.0, rel=0.06)
    assert costs(9) / costs(1) == pytest.approx(2.0, rel=0.06)

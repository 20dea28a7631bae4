"""Pass costs: measured, interpolated, kept up to date, remembered."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dartree_core.engine.costs import ROWS, PassCosts, costs_of, measure, remember_costs
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
    assert costs_of(target, memory)(17) == pytest.approx(35.0 * 17 / 9)


def test_a_busy_moment_spoils_no_size(monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny.trained("tied").target
    ticks, now = iter(range(10**6)), [0.0]
    per_row = {n: 1e-3 * (10 + n) for n in ROWS}
    forward = type(target).forward

    def timed(tokens: Any, cache: Any, **options: Any) -> Any:
        # Passes 12 to 19 take ten times as long, whichever they are.
        slow = 10.0 if 12 <= next(ticks) < 20 else 1.0
        now[0] += slow * per_row.get(len(tokens), 0.0)
        return forward(target, tokens, cache, **options)

    monkeypatch.setattr(target, "forward", timed)
    monkeypatch.setattr("dartree_core.engine.costs.time.perf_counter", lambda: now[0])
    costs = measure(target)
    assert [costs(n) for n in ROWS] == pytest.approx([10.0 + n for n in ROWS])


def test_measured_costs_are_remembered(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny.trained("tied").target
    memory = Memory(tmp_path / "measured.json")
    first = costs_of(target, memory)
    assert set(first.to_dict()) == {str(n) for n in ROWS}
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

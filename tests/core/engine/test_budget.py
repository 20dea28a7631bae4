"""Budget auto: what it verifies, when it decodes plainly, and what it may cost."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dartree_core.config import AUTO_LIMIT, DecodeConfig, TreeConfig
from dartree_core.engine.budget import BudgetPolicy, Calibration
from dartree_core.engine.costs import ROWS, PassCosts, costs_of, measure
from dartree_core.events import RoundDone
from dartree_core.models.memory import Memory
from tests.core import tiny

FLAT = PassCosts({1: 10.0, 65: 10.0})
"""Rows cost nothing: a GPU far from its limits."""
STEEP = PassCosts({1: 10.0, 65: 650.0})
"""Every row costs a whole step: nothing can pay."""


def test_free_rows_are_all_verified() -> None:
    policy = BudgetPolicy(FLAT, slots=7)
    scores = [-0.1 * i for i in range(1, 41)]
    size, expected = policy.size(scores)
    assert size == 40
    assert expected > 2


def test_rows_that_cost_a_step_are_not_worth_a_guess() -> None:
    policy = BudgetPolicy(STEEP, slots=7)
    size, expected = policy.size([-0.5, -1.0, -3.0])
    assert (size, expected) == (0, 1.0)


@given(
    scores=st.lists(st.floats(-12, 0), max_size=64).map(lambda x: sorted(x, reverse=True)),
    step=st.floats(1, 100),
    row=st.floats(0.01, 50),
)
def test_the_size_chosen_is_the_best_prefix(scores: list[float], step: float, row: float) -> None:
    policy = BudgetPolicy(PassCosts({1: step, 65: step + 64 * row}), slots=7)
    size, expected = policy.size(scores)

    def value(n: int) -> float:
        tokens = 1 + sum(policy.calibration.chance(s) for s in scores[:n])
        return tokens - policy.rate * policy.costs(n + 1)

    best = max(value(n) for n in range(len(scores) + 1))
    assert value(size) == pytest.approx(best)
    assert expected == pytest.approx(1 + sum(policy.calibration.chance(s) for s in scores[:size]))


def test_calibration_unlearns_an_overconfident_head() -> None:
    calibration = Calibration()
    assert calibration.chance(-0.05) > 0.9
    for i in range(400):
        calibration.learn([-0.05, -2.2], [i % 4 == 0, False])
    assert calibration.chance(-0.05) == pytest.approx(0.25, abs=0.08)
    assert calibration.chance(-2.2) < 0.02
    # What was never seen keeps its score's word.
    assert calibration.chance(-0.9) == pytest.approx(2.718 ** (-0.9), rel=0.01)


def simulate(policy: BudgetPolicy, rounds: int, chance: float, draft_ms: float) -> float:
    """Time of `rounds` rounds over that of plain decoding of the same tokens.

    Chains of three nodes whose scores promise 0.6 each, and which come true with `chance`.
    """
    dice = random.Random(1)
    spent = plain = 0.0
    for _ in range(rounds):
        plan = policy.plan()
        if not plan.draft:
            policy.after_plain(10.0)
            spent, plain = spent + 10.0, plain + 10.0
            continue
        scores = [-0.51, -1.02, -1.53]
        size, _ = policy.size(scores)
        accepted = 0
        while accepted < size and dice.random() < chance:
            accepted += 1
        hits = [i < accepted for i in range(size)]
        policy.calibration.learn(scores[:size], hits)
        verify_ms = policy.costs(size + 1)
        policy.after_tree(
            tokens=accepted + 1,
            rows=size + 1,
            height=size,
            draft_ms=draft_ms,
            verify_ms=verify_ms,
        )
        spent += draft_ms + verify_ms
        plain += 10.0 * (accepted + 1)
    return spent / plain


@pytest.mark.parametrize("draft_ms", [1.0, 4.0, 9.0])
@pytest.mark.parametrize("chance", [0.0, 0.2, 0.5])
def test_a_drafter_that_does_not_pay_costs_next_to_nothing(chance: float, draft_ms: float) -> None:
    policy = BudgetPolicy(PassCosts({1: 10.0, 65: 10.0 + 64 * 8.0}), slots=3)
    assert simulate(policy, 400, chance, draft_ms) < 1.04


def test_a_drafter_that_pays_is_used() -> None:
    policy = BudgetPolicy(PassCosts({1: 10.0, 65: 10.0 + 64 * 0.5}), slots=3)
    assert simulate(policy, 400, 0.9, 1.0) < 0.5
    assert policy.gain is not None
    assert policy.gain > 2


def test_a_drafter_that_gets_better_is_tried_again() -> None:
    policy = BudgetPolicy(PassCosts({1: 10.0, 65: 10.0 + 64 * 2.0}), slots=3)
    simulate(policy, 200, 0.0, 2.0)
    assert not policy.plan().draft
    assert "plain" in policy.plan().note
    simulate(policy, 300, 0.95, 2.0)
    assert policy.plan().draft


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


@pytest.mark.parametrize("method", ["dartree", "dartree-fixed", "ddtree"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_auto_changes_nothing_but_time(method: Any, temperature: float) -> None:
    decoder = tiny.trained("tied")
    prompt = [7, 100, 31, 8, 250]
    config = DecodeConfig(method=method, tree=TreeConfig(budget="auto"), max_new_tokens=48)
    config = config.with_changes(temperature=temperature, seed=3)
    plain = decoder.generate(prompt, config.with_changes(method="ar"))
    found = list(decoder.stream(prompt, config))
    assert tiny.finish(found).token_ids == plain.token_ids
    rounds = [e for e in found if isinstance(e, RoundDone)]
    for done in rounds:
        assert done.tree.num_verified <= done.budget <= AUTO_LIMIT
        assert not list(done.tree.problems())
        if done.tree.num_verified:
            assert done.expected is not None
            assert done.expected > 1
    decoder._policies.clear()


def test_auto_says_why_it_does_not_draft() -> None:
    decoder = tiny.trained("tied")
    policy = decoder._policies[False] = BudgetPolicy(STEEP, slots=7)
    for _ in range(10):
        policy.after_tree(tokens=1, rows=9, height=3, draft_ms=5.0, verify_ms=90.0)
    try:
        config = DecodeConfig(tree=TreeConfig(budget="auto"), max_new_tokens=6)
        rounds = tiny.rounds(list(decoder.stream([7, 100, 31], config)))
        assert rounds[0].note.startswith("plain: ")
        assert rounds[0].budget == 0
        assert len(rounds[0].tree) == 1
    finally:
        decoder._policies.clear()

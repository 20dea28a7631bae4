"""Budget auto: what it verifies, when it decodes plainly, and what a decoder does with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dartree_core.config import AUTO_LIMIT, DecodeConfig, TreeConfig
from dartree_core.engine import Decoder
from dartree_core.engine.budget import BudgetPolicy, TurnBudget
from dartree_core.engine.costs import PassCosts, remember_costs
from dartree_core.events import RoundDone
from dartree_core.models.memory import Memory
from tests.core import tiny

FLAT = PassCosts({1: 10.0, 65: 10.0})
"""Rows cost nothing: a GPU far from its limits."""
STEEP = PassCosts({1: 10.0, 65: 650.0})
"""Every row costs a whole step: nothing can pay."""
LONG = 10_000


def turn(costs: PassCosts, slots: int = 7, limit: int = LONG) -> TurnBudget:
    return BudgetPolicy(costs, slots).turn(limit)


def test_free_rows_are_all_verified() -> None:
    scores = [-0.1 * i for i in range(1, 41)]
    size, expected = turn(FLAT).size(scores)
    assert size == 40
    assert expected > 2


def test_rows_that_cost_a_step_are_not_worth_a_guess() -> None:
    assert turn(STEEP).size([-0.5, -1.0, -3.0]) == (0, 1.0)


@given(
    scores=st.lists(st.floats(-12, 0), max_size=64).map(lambda x: sorted(x, reverse=True)),
    step=st.floats(1, 100),
    row=st.floats(0.01, 50),
    draft=st.floats(0, 0.9),
)
def test_the_size_chosen_is_the_best_the_turn_can_afford(
    scores: list[float], step: float, row: float, draft: float
) -> None:
    policy = BudgetPolicy(PassCosts({1: step, 65: step + 64 * row}), slots=7)
    policy.timed(0.0, draft * step)
    budget = policy.turn(LONG)
    size, expected = budget.size(scores)

    def tokens(n: int) -> float:
        return 1 + sum(policy.calibration.chance(s) for s in scores[:n])

    # A new turn may lose 2% of 48 plain steps.
    spare = 0.96 * step - policy.draft_ms
    affordable = [n for n in range(len(scores) + 1) if n * row <= spare * (1 + 1e-9)] or [0]
    best = max(tokens(n) - budget.rate * policy.costs(n + 1) for n in affordable)
    assert tokens(size) - budget.rate * policy.costs(size + 1) == pytest.approx(best, abs=1e-6)
    assert expected == pytest.approx(tokens(size))
    assert size in affordable


def test_a_turn_without_means_does_not_draft() -> None:
    policy = BudgetPolicy(FLAT, slots=7)
    policy.timed(0.0, 4.0)
    assert policy.turn(48).plan().draft
    for _ in range(9):
        policy.timed(0.0, 8.0)
    # Half a plain step is all that so short a turn may lose.
    assert not policy.turn(8).plan().draft
    assert "may lose" in policy.turn(8).plan().note


def test_a_turn_saves_up_for_a_try_that_can_win() -> None:
    costs = {1: 10.0, 3: 12.0, 65: 74.0}
    policy = BudgetPolicy(PassCosts(costs), slots=7)
    policy.timed(0.0, 4.5)  # 0.45 plain steps, of the 0.48 that this turn may lose
    assert not policy.turn(24).plan().draft
    roomy = BudgetPolicy(PassCosts(costs | {3: 10.1}), slots=7)
    roomy.timed(0.0, 4.5)
    assert roomy.turn(24).plan().draft


def test_a_losing_turn_pauses_and_tries_again() -> None:
    budget = turn(FLAT)
    lost: dict[str, Any] = {"tokens": 1, "rows": 2, "height": 1, "draft_ms": 0.3, "verify_ms": 10.0}
    assert budget.plan().draft
    budget.after_tree(**lost)
    waits = []
    for _ in range(4):
        waits.append(0)
        while not budget.plan().draft:
            assert "running at 0.9" in budget.plan().note
            budget.after_plain(10.0)
            waits[-1] += 1
        budget.after_tree(**lost)
    assert waits == [6, 12, 24, 48]
    # Once it pays, it goes on.
    budget.after_tree(**{**lost, "tokens": 9})
    assert budget.plan().draft


def test_what_a_turn_learns_serves_the_next() -> None:
    policy = BudgetPolicy(PassCosts({1: 10.0, 65: 74.0}), slots=7)
    first = policy.turn(LONG)
    assert first.gain is None
    for _ in range(6):
        first.after_tree(tokens=4, rows=9, height=4, draft_ms=3.0, verify_ms=18.0)
    second = policy.turn(LONG)
    assert second.gain is not None
    assert second.gain > 1.0
    assert policy.draft_ms == 3.0
    assert second.plan().depth == 5


def test_an_interrupted_draft_hardly_moves_the_estimate() -> None:
    policy = BudgetPolicy(FLAT, slots=7)
    policy.timed(0.5)
    for ms in (3.0, 3.1, 2.9, 400.0, 3.0):
        policy.timed(0.5, ms)
    assert policy.draft_ms < 3.5
    assert policy.step_ms == 10.5


def test_looking_after_a_tree_is_part_of_its_price() -> None:
    """The host does more in a round with a tree than in a plain one, and a turn may lose by it."""
    policy = BudgetPolicy(FLAT, slots=7)
    policy.timed(0.2)
    budget = policy.turn(LONG)
    budget.after_tree(tokens=1, rows=1, height=0, draft_ms=3.0, verify_ms=FLAT(1), host_ms=0.6)
    assert policy.step_ms == pytest.approx(FLAT(1) + 0.2)
    assert policy.draft_ms == pytest.approx(3.4)
    assert budget.lost == pytest.approx(3.4 / policy.step_ms)


def test_what_is_learnt_survives_the_process() -> None:
    policy = BudgetPolicy(FLAT, slots=7)
    budget = policy.turn(LONG)
    for _ in range(5):
        policy.calibration.learn([-0.1, -2.0], [False, False])
        budget.after_tree(tokens=2, rows=9, height=4, draft_ms=3.0, verify_ms=10.0)
    later = BudgetPolicy(FLAT, slots=7)
    later.restore(policy.to_dict())
    assert later.known == pytest.approx(policy.known, rel=0.01)
    assert later.draft_ms == pytest.approx(policy.draft_ms)
    assert later.calibration.chance(-0.1) == pytest.approx(
        policy.calibration.chance(-0.1), abs=1e-3
    )
    assert later.turn(LONG).gain == pytest.approx(policy.turn(LONG).gain, rel=0.01)


@pytest.mark.parametrize(
    "change",
    [
        {"rounds": float("nan")},
        {"rounds": -1},
        {"steps": "many"},
        {"calibration": {"seen": [1], "hits": [1]}},
        {"calibration": None},
    ],
)
def test_a_damaged_memory_is_ignored(change: dict[str, Any]) -> None:
    policy = BudgetPolicy(FLAT, slots=7)
    policy.turn(LONG).after_tree(tokens=2, rows=9, height=4, draft_ms=3.0, verify_ms=10.0)
    for data in ({**policy.to_dict(), **change}, None, [1], {}):
        later = BudgetPolicy(FLAT, slots=7)
        later.restore(data)
        assert later.known == (0.0, 0.0)
        assert later.turn(LONG).gain is None


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


def test_auto_says_why_it_does_not_draft() -> None:
    decoder = tiny.trained("tied")
    decoder = Decoder(decoder.target, decoder.drafter)
    policy = decoder.budget_policy()
    policy.losses.book(1.9)
    policy.timed(0.0, policy.costs(1))
    config = DecodeConfig(tree=TreeConfig(budget="auto"), max_new_tokens=6)
    rounds = tiny.rounds(list(decoder.stream([7, 100, 31], config)))
    assert rounds[0].note.startswith("plain: ")
    assert rounds[0].budget == 0
    assert len(rounds[0].tree) == 1


def test_ways_of_drafting_learn_apart_and_share_costs() -> None:
    trained = tiny.trained("tied")
    decoder = Decoder(trained.target, trained.drafter)
    policies = [
        decoder.budget_policy(),
        decoder.budget_policy("ddtree"),
        decoder.budget_policy("dartree", "sampled"),
        decoder.budget_policy("dartree", "coupled"),
    ]
    assert len({id(p) for p in policies}) == 4
    assert len({id(p.costs) for p in policies}) == 1
    assert decoder.budget_policy() is policies[0]


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({}, "greedy"),
        ({"temperature": 0.8}, "coupled"),
        ({"temperature": 0.8, "coupled": False}, "sampled"),
    ],
)
def test_a_decoder_remembers_what_its_turns_taught(
    tmp_path: Path, change: dict[str, Any], kind: Any
) -> None:
    trained = tiny.trained("tied")
    assert trained.drafter is not None
    memory = Memory(tmp_path / "measured.json")
    config = DecodeConfig(tree=TreeConfig(budget="auto"), max_new_tokens=32).with_changes(**change)
    decoder = Decoder(trained.target, trained.drafter, memory=memory)
    decoder.generate([7, 100, 31, 8, 250], config)
    learnt = decoder.budget_policy("dartree", kind)
    assert learnt.known[0] >= 1
    later = Decoder(trained.target, trained.drafter, memory=memory)
    assert later.budget_policy("dartree", kind).known == pytest.approx(learnt.known, rel=0.02)
    assert later.budget_policy("ddtree", kind).known == (0.0, 0.0)
    # Other weights under the same name are another drafter.
    other = tiny.drafter(trained.target)
    other.label = trained.drafter.label
    stranger = Decoder(trained.target, other, memory=memory)
    assert stranger.budget_policy("dartree", kind).known == (0.0, 0.0)


def test_plain_turns_tell_what_a_step_costs_now(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "measured.json")
    trained = tiny.trained("tied")
    slow = PassCosts({1: 500.0, 9: 510.0, 65: 600.0})
    remember_costs(trained.target, slow, memory)
    decoder = Decoder(trained.target, trained.drafter, memory=memory)
    config = DecodeConfig(method="ar", max_new_tokens=64, ignore_eos=True)
    decoder.generate(tiny.PROMPT, config)
    policy = decoder.budget_policy()
    assert policy.costs(1) < 100
    assert policy.costs(1) <= policy.costs(9) <= policy.costs(65)
    # Nothing is measured for the sake of plain decoding alone.
    fresh = Decoder(trained.target, trained.drafter, memory=Memory(tmp_path / "none.json"))
    fresh.generate(tiny.PROMPT, config)
    assert not (tmp_path / "none.json").exists()


def test_a_turn_too_short_to_draft_measures_and_reads_nothing(tmp_path: Path) -> None:
    trained = tiny.trained("tied")
    decoder = Decoder(trained.target, trained.drafter, memory=Memory(tmp_path / "measured.json"))
    config = DecodeConfig(max_new_tokens=1).with_changes(budget="auto")
    session = decoder.session()
    decoder.generate(tiny.PROMPT, config, session=session)
    assert not (tmp_path / "measured.json").exists()
    assert session.draft_cache is not None
    assert session.draft_cache.length == 0

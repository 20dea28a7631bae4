from __future__ import annotations

import pytest

from dartree_core.gate import Gate
from dartree_core.glances import SHARE, Follow, Glances, StepByStep


class Clock:
    """Moved by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def glanced(glances: Glances) -> bool:
    """Whether the next round is glanced at; it is not followed step by step in any case."""
    found = glances.follow()
    assert found is not Follow.STEPS
    return found is Follow.GLANCE


def test_who_pulls_events_sees_every_step() -> None:
    watcher = StepByStep()
    for _ in range(3):
        assert watcher.follow() is Follow.STEPS
        watcher.told(1e9)


def test_every_round_is_followed_where_telling_costs_nothing() -> None:
    glances = Glances(Gate(), 0.0, Clock())
    assert [glanced(glances) for _ in range(3)] == [True] * 3


def test_a_glance_is_followed_by_a_pause() -> None:
    clock = Clock()
    glances = Glances(Gate(), 1.0, clock)
    seen = []
    for clock.now in (0.0, 0.3, 0.9, 1.0, 1.9, 2.5):
        seen.append(glanced(glances))
    assert seen == [True, False, False, True, False, True]


@pytest.mark.parametrize("seconds", [0.0, 0.05])
def test_glances_take_a_small_share_of_the_time(seconds: float) -> None:
    clock = Clock()
    glances = Glances(Gate(), seconds, clock)
    cost, spent = 0.004, 0.0
    for _ in range(2000):
        clock.now += 0.03
        if glanced(glances):
            clock.now += cost
            spent += cost
            glances.told(cost)
    assert 0.7 * SHARE < spent / clock.now <= 1.05 * SHARE


def test_one_slow_glance_is_no_reason_to_look_away() -> None:
    clock = Clock()
    glances = Glances(Gate(), 0.0, clock)
    for cost in (0.001, 0.001, 3600.0, 0.001):
        assert glanced(glances)
        glances.told(cost)
        clock.now += 0.2
    assert glanced(glances)


def test_a_held_decoder_is_always_followed() -> None:
    gate = Gate()
    glances = Glances(gate, 1e9, Clock())
    assert glanced(glances)
    assert not glanced(glances)
    gate.step("round")
    assert [glances.follow() for _ in range(3)] == [Follow.STEPS] * 3
    gate.let_go()
    assert not glanced(glances)


def test_a_glance_that_was_held_is_no_cost() -> None:
    gate, clock = Gate(), Clock()
    glances = Glances(gate, 1.0, clock)
    assert glanced(glances)
    gate.hold()
    glances.told(3600.0)
    gate.let_go()
    clock.now = 1.5
    assert glanced(glances)

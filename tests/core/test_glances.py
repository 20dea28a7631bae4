from __future__ import annotations

from dartree_core.gate import Gate
from dartree_core.glances import Glances


class Clock:
    """Moved by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_every_round_is_followed_by_default() -> None:
    glances = Glances(Gate(), 0.0, Clock())
    assert [glances() for _ in range(3)] == [True] * 3


def test_a_glance_is_followed_by_a_pause() -> None:
    clock = Clock()
    glances = Glances(Gate(), 1.0, clock)
    seen = []
    for clock.now in (0.0, 0.3, 0.9, 1.0, 1.9, 2.5):
        seen.append(glances())
    assert seen == [True, False, False, True, False, True]


def test_a_held_decoder_is_always_followed() -> None:
    gate = Gate()
    glances = Glances(gate, 1e9, Clock())
    assert glances()
    assert not glances()
    gate.step("round")
    assert [glances() for _ in range(3)] == [True] * 3
    gate.let_go()
    assert not glances()

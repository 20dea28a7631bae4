from __future__ import annotations

import pytest

from dartree_tui.pace import LATE, LONGEST, MOST, SHARE, Interval, Pace, on_these_cores, share_of


class Hands:
    """A clock and a CPU meter moved by hand."""

    def __init__(self) -> None:
        self.now = self.used = 0.0

    def pace(self) -> Pace:
        return Pace(lambda: self.now, lambda: self.used)


def frames(hands: Hands, pace: Pace, cost: float, seconds: float, limited: bool = True) -> int:
    """Frames drawn while a timer asks ten times a second and each frame costs so much."""
    drawn = 0
    for _ in range(round(seconds * 10)):
        hands.now += 0.1
        if pace.due(limited):
            drawn += 1
            hands.used += cost
    return drawn


def test_every_frame_is_due_while_nothing_decodes() -> None:
    hands = Hands()
    assert frames(hands, hands.pace(), 0.5, 10, limited=False) == 100


def test_cheap_frames_are_all_drawn() -> None:
    hands = Hands()
    assert frames(hands, hands.pace(), 0.1 * SHARE * 0.9, 10) == 100


def test_dear_frames_stay_within_the_share() -> None:
    hands = Hands()
    pace = hands.pace()
    frames(hands, pace, 0.01, 5)  # what was saved up is spent
    before = hands.used
    drawn = frames(hands, pace, 0.01, 60)
    assert drawn > 60 / LONGEST
    assert hands.used - before <= 60 * SHARE * 1.1


def test_only_a_worker_on_these_cores_is_spared() -> None:
    assert on_these_cores(["python", "-m", "dartree_core", "worker"], "cpu")
    assert on_these_cores([], "cpu")
    assert not on_these_cores(["python", "-m", "dartree_core", "worker"], "cuda:0")
    assert not on_these_cores(["/usr/bin/ssh", "gpu", "dartree", "worker"], "cpu")


def test_spare_cores_pay_for_ten_frames_a_second() -> None:
    hands = Hands()
    pace = Pace(lambda: hands.now, lambda: hands.used, share_of(8))
    assert frames(hands, pace, 0.04, 30) == 300
    assert share_of(1) == share_of(2) == SHARE


def test_a_view_never_looks_dead() -> None:
    hands = Hands()
    pace = hands.pace()
    frames(hands, pace, 1.0, 10)
    assert frames(hands, pace, 1.0, 12) >= 12 / (LONGEST + 0.1) - 1


def test_a_burst_is_forgotten_soon() -> None:
    hands = Hands()
    pace = hands.pace()
    hands.used += 100.0
    pace.due(True)
    assert frames(hands, pace, 0.0, 2 * LONGEST) >= 1
    hands.now += 2 * LONGEST
    assert pace.due(True)


def test_an_interval_lets_one_through() -> None:
    hands = Hands()
    interval = Interval(lambda: hands.now)
    assert interval.due(0.25)
    hands.now = 0.2
    assert not interval.due(0.25)
    assert interval.due(0)
    hands.now = 0.4
    assert not interval.due(0.25)
    hands.now = 0.5
    assert interval.due(0.25)


def test_words_wait_while_frames_are_drawn_on_credit() -> None:
    hands = Hands()
    pace = hands.pace()
    assert pace.due(True)
    assert not pace.tight
    hands.used += 1.0
    hands.now += LONGEST
    assert pace.due(True)
    assert pace.tight
    assert pace.due(False)
    assert not pace.tight


def test_rest_ends_when_a_frame_is_due() -> None:
    hands = Hands()
    pace = hands.pace()
    assert pace.rest() == 0
    hands.used += 0.06
    assert not pace.due(True)
    rest = pace.rest()
    assert 0 < rest <= LONGEST
    hands.now += rest - LATE - 0.01
    assert not pace.due(True)
    hands.now += 0.02
    assert pace.due(True)


def test_rest_is_as_long_as_it_takes_to_save_up() -> None:
    hands = Hands()
    pace = hands.pace()
    hands.used += MOST + 0.3 * LONGEST * SHARE
    assert pace.rest() == pytest.approx(0.3 * LONGEST + LATE)
    assert Pace(lambda: 0.0, lambda: hands.used, 0.0).rest() == 0

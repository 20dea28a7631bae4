from __future__ import annotations

from dartree_tui.parts import ALL, WORDS_EVERY, Part, Parts


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_everything_is_drawn_while_nothing_decodes() -> None:
    parts = Parts(Clock())
    assert [parts.next(live=False, tight=tight) for tight in (False, True, False)] == [ALL] * 3


def test_trees_follow_every_frame_and_words_some() -> None:
    clock = Clock()
    parts = Parts(clock)
    drawn = []
    for _ in range(20):
        clock.now += WORDS_EVERY / 2
        drawn.append(parts.next(live=True, tight=False))
    assert drawn == [ALL, Part.TREE] * 10


def test_parts_take_turns_where_time_is_short() -> None:
    parts = Parts(Clock())
    drawn = [parts.next(live=True, tight=True) for _ in range(6)]
    assert drawn[:3] == drawn[3:]
    assert drawn[0] | drawn[1] | drawn[2] == ALL
    assert not drawn[0] & drawn[1]
    assert not drawn[1] & drawn[2]
    assert not drawn[0] & drawn[2]


def test_the_last_frame_of_a_turn_draws_all() -> None:
    parts = Parts(Clock())
    parts.next(live=True, tight=True)
    assert parts.next(live=False, tight=False) is ALL

"""The guard of budget auto: whatever rounds do, no account is overdrawn by one it allowed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dartree_core.engine.allowance import (
    SHORT_TURN,
    SHORTEST_TURN,
    TURN_LOSS,
    WINDOW,
    WINDOW_LOSS,
    Allowance,
    Losses,
)

EPS = 1e-9

Outcomes = st.lists(st.tuples(st.floats(0.05, 1.2), st.integers(1, 6)), min_size=1, max_size=300)
"""What a round would cost beyond a plain step, and the tokens it would bring."""


def play(limit: int, outcomes: list[tuple[float, int]], losses: Losses) -> list[float]:
    """The losses of a turn that speculates whenever it may."""
    account = Allowance(limit, losses)
    booked: list[float] = []
    emitted = 0
    for extra, tokens in outcomes:
        if emitted >= limit:
            break
        allowed = extra <= account.left
        tokens = min(tokens, limit - emitted) if allowed else 1
        steps = 1 + extra if allowed else 1.0
        account.book(steps, tokens)
        booked.append(steps - tokens)
        emitted += tokens
    assert account.lost == pytest.approx(sum(booked), abs=1e-6)
    return booked


@given(limit=st.integers(1, 400), outcomes=Outcomes)
def test_no_turn_falls_further_behind_than_it_may(
    limit: int, outcomes: list[tuple[float, int]]
) -> None:
    behind = 0.0
    for rounds, loss in enumerate(play(limit, outcomes, Losses()), start=1):
        behind += loss
        # A round of these emits six tokens at most.
        assumed = max(SHORTEST_TURN, min(limit, SHORT_TURN))
        assert behind <= TURN_LOSS * max(assumed, 6 * rounds)


@given(outcomes=Outcomes, limit=st.integers(64, 600))
def test_no_window_of_a_turn_loses_more_than_its_share(
    outcomes: list[tuple[float, int]], limit: int
) -> None:
    booked = play(limit, outcomes, Losses())
    for at in range(len(booked) - WINDOW + 1):
        assert sum(booked[at : at + WINDOW]) <= WINDOW_LOSS * WINDOW + EPS


def test_many_short_turns_share_one_window() -> None:
    losses = Losses()
    booked: list[float] = []
    for _ in range(40):
        # Turns that might have been long, and end after six rounds.
        booked += play(500, [(0.9, 1)] * 6, losses)
        assert sum(booked[-WINDOW:]) <= WINDOW_LOSS * WINDOW + EPS
    assert sum(booked) > WINDOW_LOSS * WINDOW
    assert losses.left == pytest.approx(WINDOW_LOSS * WINDOW - sum(booked[-WINDOW:]), abs=1e-6)


def test_losses_that_left_the_window_are_forgiven() -> None:
    losses = Losses()
    account = Allowance(10_000, losses)
    account.book(10.0, 200)
    while account.left >= 0.5:
        account.book(1.5, 1)
    for _ in range(WINDOW):
        account.book(1.0, 1)
    assert account.left > 0.5


def test_a_window_the_turn_cannot_complete_does_not_bind() -> None:
    """What was earned may be risked again where no 64 rounds can follow."""
    account, endless = Allowance(60, Losses()), Allowance(10_000, Losses())
    for one in (account, endless):
        one.book(1.5, 20)
        for _ in range(5):
            one.book(1.5, 1)
    assert account.left > 0.5 > endless.left

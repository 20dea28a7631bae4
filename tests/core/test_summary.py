from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from dartree_core.events import (
    Calibrated,
    Event,
    PrefillDone,
    RoundDone,
    RunFailed,
    RunStarted,
    TurnFinished,
    decode,
    encode,
)
from dartree_core.summary import RoundRow, RunSummary
from tests.core.strategies import runs


def summed(events: list[Event], **options: object) -> RunSummary:
    run = RunSummary(**options)  # type: ignore[arg-type]
    for event in events:
        run.update(event)
    return run


def test_an_unfinished_turn_is_still_counted() -> None:
    prefill = PrefillDone(3, 5, 2, 0.5, 0.6, 7, "Hel", (0, 3))
    run = summed([RunStarted(), prefill, RunFailed("out of memory"), Calibrated("ar", 9, 1, 1)])
    [turn] = run.turns
    assert (turn.turn, turn.reason, turn.text) == (3, "", "Hel")
    assert (turn.prompt_tokens, turn.reused_tokens) == (5, 2)
    assert run.failure == RunFailed("out of memory")
    assert run.calibrated is not None


@given(runs(max_turns=3))
def test_turns_carry_what_their_events_said(events: list[Event]) -> None:
    run = summed(events, keep_rounds=True)
    finished = [e for e in events if isinstance(e, TurnFinished)]
    assert [(t.turn, t.reason, t.text) for t in run.turns] == [
        (e.turn, e.reason, e.text) for e in finished
    ]
    assert [t.metrics.summary() for t in run.turns] == [e.metrics for e in finished]
    done = [e for e in events if isinstance(e, RoundDone)]
    assert [(r.turn, r.round) for r in run.rounds] == [(e.turn, e.round) for e in done]
    assert sum(r.emitted for r in run.rounds) + len(run.turns) == sum(
        len(e.token_ids) for e in finished
    )


@given(runs())
def test_before_a_turn_ends_its_text_is_the_deltas(events: list[Event]) -> None:
    joined = ""
    run = RunSummary()
    for event in events:
        run.update(event)
        if isinstance(event, PrefillDone):
            joined = event.text_delta
        elif isinstance(event, RoundDone):
            joined += event.text_delta
            assert run.turns[-1].text == joined


@given(runs(max_turns=3), st.integers(0, 4))
def test_the_worst_rounds_accepted_least_and_took_longest(events: list[Event], n: int) -> None:
    rows = [RoundRow.of(e) for e in events if isinstance(e, RoundDone)]
    speculated = [r for r in rows if r.nodes]
    speculated.sort(key=lambda r: (r.accepted, -r.ms))  # stable: the earlier of equals first
    assert summed(events, worst=n).worst == speculated[:n]


@given(runs(max_turns=3), st.integers(0, 2))
def test_one_turn_alone(events: list[Event], turn: int) -> None:
    run = summed(events, turn=turn, keep_rounds=True)
    whole = summed(events, keep_rounds=True)
    assert [t.to_dict() for t in run.turns] == [t.to_dict() for t in whole.turns if t.turn == turn]
    assert run.rounds == [r for r in whole.rounds if r.turn == turn]


@given(runs())
def test_a_replay_adds_up_to_the_same(events: list[Event]) -> None:
    replayed = [decode(json.loads(json.dumps(encode(e)))) for e in events]
    live = summed(events, keep_rounds=True).to_dict()
    again = summed([e for e in replayed if e is not None], keep_rounds=True).to_dict()
    assert json.dumps(again, allow_nan=False) == json.dumps(live, allow_nan=False)

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import pytest

from dartree_core.events import (
    BlockDrafted,
    Event,
    PrefillDone,
    RoundDone,
    TreePruned,
    TurnFinished,
    TurnStarted,
)
from dartree_core.gate import Gate
from tests.core.strategies import example_run

STARTED = TurnStarted(0, "", (), "", {})
PREFILL = PrefillDone(0, 1, 0, 0.0, 0.0, 1, "", (0, 0))
DRAFTED = BlockDrafted(0, 0, (), ())
PRUNED = TreePruned(0, 0, (0,))
ROUND = next(e for e in example_run() if isinstance(e, RoundDone))
PASSED_WITHIN = 5.0
STUCK_FOR = 0.15


class Decoding:
    """A thread that passes events through a gate and says which it got past."""

    def __init__(self, gate: Gate, events: list[Event]) -> None:
        self._past: queue.Queue[Event] = queue.Queue()
        self._gate = gate
        self._events = events
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        for event in self._events:
            self._gate.after(event)
            self._past.put(event)

    def past(self) -> Event:
        return self._past.get(timeout=PASSED_WITHIN)

    def stuck(self) -> bool:
        try:
            self._past.get(timeout=STUCK_FOR)
        except queue.Empty:
            return True
        return False


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.let_go()


def test_an_open_gate_lets_everything_through(gate: Gate) -> None:
    decoding = Decoding(gate, [STARTED, DRAFTED, ROUND])
    assert [decoding.past() for _ in range(3)] == [STARTED, DRAFTED, ROUND]


def test_a_held_gate_stops_at_the_first_event_that_took_work(gate: Gate) -> None:
    gate.hold()
    decoding = Decoding(gate, [STARTED, DRAFTED, PRUNED])
    assert decoding.past() is STARTED
    assert decoding.stuck()
    gate.let_go()
    assert decoding.past() is DRAFTED
    assert decoding.past() is PRUNED


def test_a_stage_step_makes_one_event(gate: Gate) -> None:
    gate.hold()
    decoding = Decoding(gate, [DRAFTED, PRUNED, ROUND])
    assert decoding.stuck()
    gate.step("stage")
    assert decoding.past() is DRAFTED  # it goes on to make the next event, and stops there
    assert decoding.stuck()
    gate.step("stage")
    assert decoding.past() is PRUNED
    assert decoding.stuck()


def test_a_round_step_ends_with_the_round(gate: Gate) -> None:
    gate.hold()
    decoding = Decoding(gate, [DRAFTED, PRUNED, ROUND, DRAFTED])
    assert decoding.stuck()
    gate.step("round")
    assert decoding.past() is DRAFTED
    assert decoding.past() is PRUNED
    assert decoding.stuck()


def test_the_end_of_a_turn_needs_no_step(gate: Gate) -> None:
    gate.hold()
    finished = TurnFinished(0, "length", (1,), "", {})
    decoding = Decoding(gate, [ROUND, finished])
    assert decoding.stuck()
    gate.step("stage")
    assert [decoding.past(), decoding.past()] == [ROUND, finished]


def test_steps_are_taken_one_after_another(gate: Gate) -> None:
    gate.hold()
    decoding = Decoding(gate, [DRAFTED, PRUNED, ROUND, DRAFTED])
    assert decoding.stuck()
    gate.step("stage")
    gate.step("stage")
    assert [decoding.past(), decoding.past()] == [DRAFTED, PRUNED]
    assert decoding.stuck()


def test_a_step_holds_a_running_decoder(gate: Gate) -> None:
    gate.step("stage")
    assert gate.held
    decoding = Decoding(gate, [DRAFTED, PRUNED])
    assert decoding.stuck()  # the event in the making was the step


def test_a_step_asked_for_early_is_not_spent_on_the_prefill(gate: Gate) -> None:
    gate.step("round")
    decoding = Decoding(gate, [STARTED, PREFILL, DRAFTED, ROUND, DRAFTED])
    assert [decoding.past() for _ in range(3)] == [STARTED, PREFILL, DRAFTED]
    assert decoding.stuck()


def test_a_release_opens_a_held_gate_until_the_next_turn(gate: Gate) -> None:
    gate.hold()
    decoding = Decoding(gate, [DRAFTED, PRUNED])
    assert decoding.stuck()
    gate.release()
    assert decoding.past() is DRAFTED
    assert decoding.past() is PRUNED
    gate.arm()
    assert Decoding(gate, [DRAFTED]).stuck()

"""Holds the decoder between two events: pausing is not pulling."""

from __future__ import annotations

import threading
from collections import deque

from dartree_core.events import (
    Event,
    PrefillDone,
    RoundDone,
    RunStarted,
    TurnFinished,
    TurnStarted,
)
from dartree_core.worker_protocol import StepBy

_FREE = (RunStarted, TurnStarted, TurnFinished)
"""Events that cost nothing to make: a held decoder goes past them."""


class Gate:
    """A door between the decoder and its next event.

    The decoding thread calls `after` with every event it has passed on and stays there while the
    gate is held and no step is due. All other methods may be called from any thread.
    """

    def __init__(self) -> None:
        self._cond = threading.Condition()
        self._held = False
        self._released = False
        self._steps: deque[StepBy] = deque()

    @property
    def held(self) -> bool:
        """True from `hold` or `step` until `let_go`."""
        return self._held

    def hold(self) -> None:
        """Stop the decoder after the event it works on. Steps not taken yet are dropped."""
        with self._cond:
            self._held = True
            self._steps.clear()

    def let_go(self) -> None:
        """Let the decoder run."""
        with self._cond:
            self._held = False
            self._steps.clear()
            self._cond.notify_all()

    def step(self, by: StepBy) -> None:
        """Hold the decoder, but let it make one more event or go on to the end of its round.

        Steps asked for faster than the decoder takes them are taken one after another.
        """
        with self._cond:
            self._held = True
            self._steps.append(by)
            self._cond.notify_all()

    def arm(self) -> None:
        """Before a turn: forget an earlier `release` and steps left over from another turn."""
        with self._cond:
            self._released = False
            self._steps.clear()

    def release(self) -> None:
        """Let this turn through to its end, held or not: it was cancelled."""
        with self._cond:
            self._released = True
            self._cond.notify_all()

    def after(self, event: Event) -> None:
        """Called by the decoding thread after each event; blocks while held."""
        if isinstance(event, _FREE):
            return
        with self._cond:
            # The prefill comes without a step, so it takes none away.
            due = bool(self._steps) and not isinstance(event, PrefillDone)
            if due and (self._steps[0] == "stage" or isinstance(event, RoundDone)):
                self._steps.popleft()
            self._cond.wait_for(lambda: not self._held or self._released or self._steps)

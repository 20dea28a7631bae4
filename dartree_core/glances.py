"""Which rounds a reader can follow as they grow."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from statistics import median
from typing import Protocol

from dartree_core.gate import Gate

SHARE = 0.01
"""Of decoding time, for telling how rounds came about."""


class Follow(Enum):
    """How closely a round is followed, where settings want stages told.

    Attributes:
        NO: Only what it was in the end is told.
        GLANCE: Its stages are told in a row: nobody can see a tree grow at full speed.
        STEPS: Each stage is told before the next one is computed.
    """

    NO = auto()
    GLANCE = auto()
    STEPS = auto()


class Watcher(Protocol):
    """Whoever reads what a session decodes."""

    def follow(self) -> Follow:
        """Asked before each round whether, and how, to tell its stages."""
        ...

    def told(self, seconds: float) -> None:
        """Hears how long telling the stages of a round took, in seconds."""
        ...


class StepByStep:
    """A watcher that pulls event by event, as whoever iterates over a decoder does."""

    def follow(self) -> Follow:
        """Every round, as it grows."""
        return Follow.STEPS

    def told(self, seconds: float) -> None:
        """Does not mind."""


class Glances:
    """Follows a running decoder as often as costs it next to nothing, and a held one always.

    Telling a round's stages costs some percent of it, and a reader that looks ten times a second
    sees one round of many. What a round was in the end is told in any case.

    Args:
        gate: While it holds the decoder, every round is followed step by step.
        seconds: Least time between two glances otherwise. They also keep to `SHARE`.
        clock: Seconds that pass.
    """

    def __init__(
        self, gate: Gate, seconds: float, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._gate, self._seconds, self._clock = gate, seconds, clock
        self._last = -math.inf
        self._costs: deque[float] = deque(maxlen=5)

    def follow(self) -> Follow:
        """See `Watcher`."""
        if self._gate.held:
            return Follow.STEPS
        now = self._clock()
        cost = median(self._costs) if self._costs else 0.0
        if now - self._last < max(self._seconds, cost / SHARE):
            return Follow.NO
        self._last = now
        return Follow.GLANCE

    def told(self, seconds: float) -> None:
        """See `Watcher`. What a held decoder took is no cost: it waited."""
        if not self._gate.held:
            self._costs.append(seconds)

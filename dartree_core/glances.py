"""Which rounds a reader can follow as they grow."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from dartree_core.gate import Gate


class Glances:
    """Asked before each round whether to tell its stages; an engine's `Session.watched`.

    Telling how a tree grew costs a few percent of a round, and a reader that looks once a second
    sees one round of thirty. What a round was in the end is told in any case.

    Args:
        gate: While it holds the decoder, every round is followed.
        seconds: Between two glances otherwise; 0 to follow every round.
        clock: Seconds that pass.
    """

    def __init__(
        self, gate: Gate, seconds: float, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._gate, self._seconds, self._clock = gate, seconds, clock
        self._last = -math.inf

    def __call__(self) -> bool:
        """True for a round whose stages are to be told."""
        now = self._clock()
        if not self._gate.held and now - self._last < self._seconds:
            return False
        self._last = now
        return True

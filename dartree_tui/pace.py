"""How often to draw, so that watching does not slow what is watched.

The decoder's threads wait for each other many times a token, so whatever the view takes from one
core, decoding loses on all of them. The view therefore lives on an allowance: a small share of
one core, saved up while nothing is drawn and spent by drawing. With cores to spare it never runs
out; with two of them, which the decoder both uses, frames become fewer.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence

SHARE = 0.03
"""Of one core, for everything the app does while two cores or fewer decode."""

SPARE = 0.1
"""Of each core beyond two: PyTorch leaves logical cores alone that share a physical one."""

MOST = 0.03
"""Seconds of work that can be saved up, so that a question is answered at once."""

LONGEST = 1.8
"""Seconds after which a frame is due whatever it costs: a view must not look dead."""

LATE = 0.1
"""Seconds by which reading what comes, and waking up, puts off a frame."""

_ELSEWHERE = {"ssh", "mosh", "kubectl", "srun"}
"""Commands that start a worker on another machine."""


def share_of(cores: int) -> float:
    """What the view may use of one core, on a machine with this many logical ones."""
    return SHARE + SPARE * max(0, cores - 2)


def on_these_cores(command: Sequence[str], device: str) -> bool:
    """Whether a worker decodes on the cores that draw.

    Args:
        command: What started it.
        device: What it decodes on.
    """
    elsewhere = bool(command) and os.path.basename(command[0]) in _ELSEWHERE
    return device == "cpu" and not elsewhere


def glance_seconds(shared: bool) -> float:
    """Least seconds between two rounds that are worth following as they grow; 0 where the worker
    may tell what it can afford to.

    Args:
        shared: Whether a worker decodes on the cores that draw: with none to spare, frames are
            so far apart that they show one round of many.
    """
    return LONGEST if shared and share_of(cores()) <= SHARE else 0.0


def cores() -> int:
    """Logical cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Pace:
    """Says when the next frame is due.

    Args:
        clock: Seconds that pass.
        work: CPU seconds the app has used.
        share: Of one core; see `share_of`.

    Attributes:
        tight: True when the last frame was drawn on credit: the next should be a small one.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        work: Callable[[], float] = time.process_time,
        share: float = SHARE,
    ) -> None:
        self._share = share
        self._clock = clock
        self._work = work
        self._allowance = MOST
        self._looked = clock()
        self._used = work()
        self._drawn = self._looked
        self.tight = False

    def due(self, limited: bool) -> bool:
        """Whether to draw now.

        Args:
            limited: False while nothing decodes here: every frame is then due.
        """
        now, used = self._clock(), self._work()
        self._allowance += (now - self._looked) * self._share - (used - self._used)
        self._allowance = max(-LONGEST * self._share, min(MOST, self._allowance))
        self._looked, self._used = now, used
        self.tight = limited and self._allowance <= 0
        if self.tight and now - self._drawn < LONGEST:
            return False
        self._drawn = now
        return True

    def rest(self) -> float:
        """Seconds until a frame is due again, if little is done meanwhile."""
        now = self._clock()
        allowance = self._allowance + (now - self._looked) * self._share
        allowance -= self._work() - self._used
        if allowance > 0:
            return 0.0
        saved = LATE - allowance / self._share if self._share else LONGEST
        return max(0.0, min(LONGEST - (now - self._drawn), saved))


class Interval:
    """Says when something is due that should not happen more often than every so many seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._last = -math.inf

    def due(self, every: float) -> bool:
        """Whether to do it now, `every` so many seconds; always for 0."""
        now = self._clock()
        if now - self._last < every:
            return False
        self._last = now
        return True

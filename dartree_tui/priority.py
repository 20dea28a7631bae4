"""The app steps back behind the worker it watches, and never takes the worker with it.

On Linux a niceness belongs to a thread and is inherited by what the thread starts, so workers,
also later ones, are started by a thread that keeps the priority the app was given. Elsewhere a
niceness belongs to the process and could not be kept from a restarted worker: nothing is changed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

NICENESS = 15
"""Added to the app's own: enough to give way on a busy core, little enough to answer keys."""

T = TypeVar("T")


class Launcher:
    """Runs what must have the app's first priority."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "launcher")
        self._thread.submit(os.getpid).result()  # the thread must exist before we step back

    def step_back(self) -> None:
        """Lower the priority of this thread and of those it starts from now on."""
        if sys.platform == "linux":
            with suppress(OSError):
                os.nice(NICENESS)
                # Batch threads do not interrupt others when they wake up.
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

    def __call__(self, start: Callable[[], T]) -> T:
        """What `start` returns; errors pass through."""
        return self._thread.submit(start).result()

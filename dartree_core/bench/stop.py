"""Ending a run before its end, without losing what was measured."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Stopped(Exception):  # noqa: N818
    """The user asked to stop; what was being measured is dropped."""


class Stop:
    """A wish to stop, from a signal handler or another thread.

    Attributes:
        asked: True once it was made.
    """

    def __init__(self) -> None:
        self.asked = False
        self._cancel: Callable[[], None] | None = None

    def ask(self) -> None:
        """Stop after the pass that runs now."""
        self.asked = True
        if self._cancel is not None:
            self._cancel()

    def check(self) -> None:
        """Go no further when the wish was made.

        Raises:
            Stopped: It was.
        """
        if self.asked:
            raise Stopped

    @contextmanager
    def cancels(self, cancel: Callable[[], None]) -> Iterator[None]:
        """Also call `cancel` when the wish is made within the block.

        Raises:
            Stopped: It was made, before the block or in it.
        """
        self._cancel = cancel
        try:
            self.check()
            yield
        finally:
            self._cancel = None
        self.check()


@contextmanager
def on_interrupt(stop: Stop) -> Iterator[None]:
    """The first Ctrl-C ends the run after its current pass; a second one ends the process."""

    def ask(signum: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stop.ask()

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

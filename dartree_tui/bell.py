"""Sleeping until a time, or until somebody rings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress


class Bell:
    """One task waits, any thread rings."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def ring(self) -> None:
        """Wake the task that waits; nothing while none does."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # it was closed meanwhile
                loop.call_soon_threadsafe(self._rung.set)

    async def wait(self, seconds: float, unless: Callable[[], bool] = lambda: False) -> None:
        """Sleep for so long at most.

        Args:
            seconds: See above.
            unless: Whether there is no need to. Asked when ringing is heard already, so that
                nothing that happens in between is slept over.
        """
        self._rung.clear()
        self._loop = asyncio.get_running_loop()
        try:
            if unless():
                return
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._rung.wait(), seconds)
        finally:
            self._loop = None

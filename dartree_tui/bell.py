"""Sleeping until a time, or until somebody rings."""

from __future__ import annotations

import asyncio
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

    async def wait(self, seconds: float) -> None:
        """Sleep for so long at most."""
        self._rung.clear()
        self._loop = asyncio.get_running_loop()
        try:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._rung.wait(), seconds)
        finally:
            self._loop = None

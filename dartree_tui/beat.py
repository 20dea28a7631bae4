"""When the app looks at what came, and when it draws."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from textual.css.query import NoMatches
from textual.widget import MountError

from dartree_tui.bell import Bell
from dartree_tui.notices import AT_WORK
from dartree_tui.pace import Pace, cores, share_of

if TYPE_CHECKING:
    from dartree_tui.app import DartreeApp

BACKLOG = 200
"""Records waiting to be taken from which on fewer frames are drawn."""

_TAKE, _CATCH_UP, _TAKE_ALL = 0.03, 0.06, 0.2
"""Seconds for taking records: before a frame; while more wait than a frame can take in; where
frames are few, since what stays behind would be news and cost another one."""


class Beat:
    """Takes records in and has the screens painted, for as long as the app runs.

    Args:
        app: Whose screens.

    Attributes:
        pace: Says when a frame is due.
        painting: Held while a frame is drawn.
    """

    def __init__(self, app: DartreeApp) -> None:
        self.pace = Pace(share=share_of(cores()))
        self.painting = asyncio.Lock()
        self._app = app
        self._bell = Bell()
        self._looked = time.perf_counter()
        self._looks = 0
        self._blinking = True

    async def run(self, seconds: float) -> None:
        """Look every so many seconds, or, where frames are few, when one is due. A timer of
        Textual's sends a message each time, which costs more than looking does."""
        while True:
            await asyncio.sleep(seconds)
            if self._app.client.intake.unhurried and self._app.screen_stack:
                await self._bell.wait(self.pace.rest(), unless=lambda: self.hurry)
            await self.tick()

    def ring(self) -> None:
        """Look before the time; from any thread."""
        self._bell.ring()

    @property
    def hurry(self) -> bool:
        """True when the next frame should show what the user did, not under a comparison, or what
        cannot wait."""
        client = self._app.client
        wanted = self._app.main.wanted and client.status != "comparing"
        return wanted or client.intake.news or bool(client.notices)

    @property
    def behind(self) -> bool:
        """True while much more is waiting than a frame can take in, or a file is being read."""
        client = self._app.client
        heap = len(client.intake) > BACKLOG and not client.intake.unhurried
        return heap or client.reading

    async def tick(self, whole: bool = False) -> None:
        """Look now.

        Args:
            whole: Draw in any case.
        """
        async with self.painting:
            try:
                await self._look(whole)
            except (NoMatches, MountError):
                if self._app.is_running:  # else the widgets went away under our hands: it is over
                    raise

    async def _look(self, whole: bool) -> None:
        app, client = self._app, self._app.client
        if not app.is_running or not app.screen_stack:
            return
        self._looks += 1
        at_work = client.status in AT_WORK and not client.stepping
        limited = at_work and client.shares_cores
        self._blink(not limited)
        client.intake.unhurried, client.intake.ring = limited, self.ring
        # Asked before records are taken in, since taking many at once costs less, too.
        if not self.pace.due(limited=limited and not (whole or self.hurry)):
            return
        now = time.perf_counter()
        seconds, self._looked = now - self._looked, now
        behind = self.behind
        client.pump(_TAKE_ALL if limited else _CATCH_UP if behind else _TAKE)
        if behind and self._looks % 6:
            return  # a long trace is being read: rather get on than draw what is gone at once
        app.taken(seconds)
        with app.batch_update():  # one arrangement of the screen a frame, not one a widget
            for screen in app.screen_stack:
                paint = getattr(screen, "paint", None)
                if paint is not None and screen.is_mounted:
                    await paint()
        # Painting waits for widgets, and a screen that was idle meanwhile left its update to the
        # end of the batch, of which Textual tells the app alone.
        app.screen.check_idle()

    def _blink(self, on: bool) -> None:
        """Whether the cursor of the input blinks: each time repaints like a small frame."""
        if on != self._blinking:
            self._blinking = self._app.main.prompt.cursor_blink = on

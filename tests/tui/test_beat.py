"""The app rests while the decoder needs the cores, and is there when something happens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from textual.pilot import Pilot
from textual.screen import Screen

from dartree_tui.app import DartreeApp
from dartree_tui.pace import Pace
from dartree_tui.widgets.status import StatusLine
from tests.tui.driving import ask, running, slow

PATIENCE = 20.0


async def _key(app: DartreeApp, pilot: Pilot[object]) -> None:
    await pilot.press("x")


async def _mouse(app: DartreeApp, pilot: Pilot[object]) -> None:
    await pilot.click("#grid")


async def _size(app: DartreeApp, pilot: Pilot[object]) -> None:
    await pilot.resize_terminal(80, 24)


async def _news(app: DartreeApp, pilot: Pilot[object]) -> None:
    app.client.stop()  # the end of the turn comes


@pytest.mark.parametrize("happens", [_key, _mouse, _size, _news])
async def test_what_happens_wakes_an_app_that_rests(
    happens: Callable[[DartreeApp, Pilot[object]], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(slow(0.3)) as (app, pilot):
        await ask(pilot, "explain", finish=False)
        app.beat.pace = pace = Pace(share=0.0)
        monkeypatch.setattr(pace, "rest", lambda: 3600.0)
        looks = 0
        due = pace.due

        def counted(limited: bool) -> bool:
            nonlocal looks
            looks += 1
            return due(limited)

        monkeypatch.setattr(pace, "due", counted)
        deadline = time.monotonic() + PATIENCE
        before = 0
        while not looks or looks != before:  # a look, and none for some beats: it rests
            assert time.monotonic() < deadline
            before = looks
            await asyncio.sleep(0.5)
        assert app.client.store.generating
        await happens(app, pilot)
        while looks == before:
            assert time.monotonic() < deadline, "it slept on"
            await asyncio.sleep(0.05)


async def test_a_frame_is_shown_though_its_screen_was_idle_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running() as (app, pilot):
        shown = asyncio.Event()
        refresh = Screen._compositor_refresh

        def watched(screen: Screen[object]) -> None:
            shown.set()
            refresh(screen)

        async def paint() -> None:
            app.main.query_one(StatusLine).refresh()
            await asyncio.sleep(0.1)

        app.main.prompt.cursor_blink = False  # each time wakes the screen
        await pilot.pause(0.2)
        monkeypatch.setattr(Screen, "_compositor_refresh", watched)
        monkeypatch.setattr(app.main, "paint", paint)
        await asyncio.wait_for(shown.wait(), 5)

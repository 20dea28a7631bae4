"""Driving an app or a client in tests: start it on a fake engine, wait for what should come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from dartree_core.events import Event
from dartree_core.pieces import TokenText
from dartree_core.trace import Recorder, to_line
from dartree_tui.app import DartreeApp
from dartree_tui.client import Client
from dartree_tui.engines import Engine
from dartree_tui.engines.fake import FakeEngine
from dartree_tui.engines.fake_decoder import FakeDecoder
from dartree_tui.history import History
from dartree_tui.settings import Settings

PATIENCE = 20.0
PLAIN = Settings().changed("engine", calibrate=False).changed("decode", budget=64)
SIZES = ((120, 40), (80, 24), (40, 12))


def wait(client: Client, done: Callable[[], bool]) -> None:
    """Pump until it is so."""
    deadline = time.monotonic() + PATIENCE
    while not done():
        client.pump()
        assert time.monotonic() < deadline, (client.status, list(client.notices))
        time.sleep(0.002)


async def until(pilot: Pilot[Any], done: Callable[[], bool]) -> None:
    """Let the app run until it is so, then let it paint."""
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < deadline, "it never came"
        await pilot.pause(0.02)
    await settle(pilot)


async def settle(pilot: Pilot[Any]) -> None:
    """Let everything that is known be painted."""
    app = pilot.app
    assert isinstance(app, DartreeApp)
    await app.settle()
    await pilot.pause()


@asynccontextmanager
async def running(
    *engines: Engine,
    size: tuple[int, int] = (120, 40),
    settings: Settings | None = None,
    **options: Any,
) -> AsyncIterator[tuple[DartreeApp, Pilot[None]]]:
    """The app on the given engines, one after another at every restart, ready to be asked.

    Nothing is measured unless `settings` say so: a measured speed differs from run to run.
    """
    left = list(engines) or [FakeEngine()]
    settings = settings or PLAIN
    app = DartreeApp(lambda: left.pop(0), settings, watch=False, history=History(), **options)
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: app.client.status in ("ready", "replay") and app.main.painted)
        if app.client.status == "replay":
            await until(pilot, lambda: app.client.complete and not len(app.client.intake))
        yield app, pilot


async def ask(pilot: Pilot[Any], text: str, finish: bool = True) -> None:
    """Type a question and send it; by default, wait for the answer."""
    app = pilot.app
    assert isinstance(app, DartreeApp)
    turns = len(app.client.store.turns)
    await pilot.press(*("space" if c == " " else c for c in text), "enter")
    await until(pilot, lambda: len(app.client.store.turns) > turns)
    if finish:
        await until(pilot, lambda: app.client.status == "ready")


def slow(seconds: float = 0.05, **options: Any) -> FakeEngine:
    """A fake engine whose rounds take a while."""
    return FakeEngine(FakeDecoder(seconds), **options)


def write_trace(path: Path, events: list[Event], words: list[str] | None = None) -> Path:
    """A trace file of these events."""
    recorder = Recorder(lambda t: TokenText(words[t] if words else f" t{t}"))
    with path.open("wb") as out:
        for event in events:
            for record in recorder.records(event):
                out.write(to_line(record))
    return path


def fake_trace(path: Path, seed: int = 0, **changes: Any) -> Path:
    """The trace of a fake turn."""
    from dartree_core.config import DecodeConfig

    decoder = FakeDecoder(seed=seed)
    config = DecodeConfig(detail="full").with_changes(**changes)
    events = list(decoder.stream("explain", config, session=decoder.session()))
    return write_trace(path, events, decoder.words)


async def sleep(seconds: float) -> None:
    """Real time, for things that run in threads."""
    await asyncio.sleep(seconds)

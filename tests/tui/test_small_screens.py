"""Other screens than the main one where there is little room."""

from __future__ import annotations

from dataclasses import replace

import pytest
from textual.widgets import Input, Select

from dartree_core.config import DecodeConfig
from dartree_core.events import PrefillDone, TurnStarted
from dartree_core.pieces import TokenText
from dartree_tui.compare import Comparison, Side
from dartree_tui.engines import Lost
from dartree_tui.screens.lost import LostScreen
from dartree_tui.vocab import Vocab
from tests.tui.driving import SIZES, ask, running, settle, until
from tests.tui.samples import make_round
from tests.tui.snapshots import Snapshot, screen_text


async def test_comparing_at_forty_columns(snapshot: Snapshot) -> None:
    async with running(size=(40, 12)) as (app, pilot):
        await pilot.press("escape", "c")
        await settle(pilot)
        screen = app.screen.region
        await pilot.press(*"explain", "tab")
        await settle(pilot)
        for name in ("#prompt", "#left-method", "#left-budget"):
            field = app.screen.query_one(name)
            assert field.region.width > 10
            assert screen.contains_region(field.region)
        await pilot.press("enter", "escape", "shift+tab", "enter")
        await until(pilot, lambda: bool(app.client.comparison and app.client.comparison.over))
        text = screen_text(app)
        assert "the same" in text
        assert "= Speculative" in text
        snapshot(app, "compare_40x12")
        await pilot.press("f6")
        await settle(pilot)
        assert "method" in screen_text(app)
        assert app.focused is app.screen.query_one("#left-method")


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
async def test_where_two_answers_part_is_in_sight(size: tuple[int, int]) -> None:
    vocab = Vocab({i: TokenText(f" w{i}", None) for i in range(80)})
    sides = Side(DecodeConfig()), Side(DecodeConfig())
    comparison = Comparison("x", sides, vocab)
    comparison.over = True
    for side, last in zip(sides, (61, 62), strict=True):
        side.store.feed(TurnStarted(0, "x", (), "", {}))
        side.store.feed(PrefillDone(0, 1, 0, 0.1, 0.1, 0, "", (0, 0)))
        for number, token in enumerate((*range(1, 60), last)):
            done = replace(make_round(), round=number, tokens=[token], provenance=["bonus"])
            side.store.feed(done)
    async with running(size=size) as (app, pilot):
        app.client.comparison = comparison
        await pilot.press("escape", "c")
        await settle(pilot)
        text = screen_text(app)
        assert "part at token 60" in text.replace("\n ", "")
        assert "w61" in text
        assert "w62" in text


async def test_finding_at_forty_columns() -> None:
    async with running(size=(40, 12)) as (app, pilot):
        await ask(pilot, "explain")
        await pilot.press("escape", "slash")
        await settle(pilot)
        for field in (app.screen.query_one(Input), *app.screen.query(Select)):
            assert field.region.width > 20
            assert app.screen.region.contains_region(field.region)


TAIL = tuple(f"{i} a long line of a traceback, {'and more of it, ' * 8}" for i in range(11))


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
async def test_a_lost_worker_s_cause_and_keys_are_in_sight(size: tuple[int, int]) -> None:
    async with running(size=size) as (app, pilot):
        lost = Lost("The worker ended unexpectedly, by SIGKILL.", (*TAIL, "out of memory"))
        app.push_screen(LostScreen(lost, "/x/worker.log", True))
        await settle(pilot)
        text = screen_text(app)
        for piece in ("SIGKILL", "out of memory", "ctrl+r only", "esc closes"):
            assert piece in text


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
async def test_what_is_loaded_and_its_fields_are_in_sight(size: tuple[int, int]) -> None:
    async with running(size=size) as (app, pilot):
        await pilot.press("f4")
        await settle(pilot)
        text = screen_text(app)
        assert "loaded: fake-135M" in text
        assert "esc closes" in text
        assert size[1] == 12 or "ctrl+s" in text
        for name in ("target", "draft", "device", "dtype"):
            await pilot.press("tab")
            await settle(pilot)
            assert app.focused is app.screen.query_one(f"#{name}")
            assert name in screen_text(app)

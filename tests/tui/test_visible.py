"""Text from outside: shown as it is, parsed by nobody, obeyed by no terminal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from textual.widgets import Markdown

from dartree_core.config import DecodeConfig
from dartree_core.events import RoundDone
from dartree_tui.engines.fake import FakeEngine
from dartree_tui.engines.fake_decoder import FakeDecoder
from dartree_tui.engines.replay import ReplayEngine
from dartree_tui.widgets.visible import visible
from tests.tui.driving import ask, running, settle, write_trace
from tests.tui.snapshots import screen_text

EVIL = "\x1b]0;owned\x07 \x9b31m \x7f"


def controls(text: str) -> set[str]:
    """What a terminal would obey."""
    return {c for c in text if c != "\n" and (c < " " or "\x7f" <= c <= "\x9f")}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\n\ttext é ␣", "plain\n\ttext é ␣"),
        ("\x1b[2J", "␛[2J"),
        ("\0\x07\x7f", "␀␇␡"),
        ("\x85\x9b\ud800", "���"),
        ("a\r\nb\rc\r", "a \nb␍c␍"),
    ],
)
def test_one_picture_for_one_control(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert len(shown) == len(text)


async def test_no_answer_steers_the_terminal() -> None:
    answer = f"One {EVIL} two.\n\nThe end."
    async with running(FakeEngine(FakeDecoder(answer=answer))) as (app, pilot):
        await ask(pilot, "explain")
        assert app.client.store.turns[0].text == answer
        assert app.main.query_one(Markdown).source == visible(answer)
        assert not controls(screen_text(app))
        assert "␛]0;owned␇" in screen_text(app)
        await pilot.press("escape", "p")
        await settle(pilot)
        assert "␛]0;owned␇ �31m ␡ two." in screen_text(app)
        assert not controls(screen_text(app))


async def test_somebody_elses_trace_steers_nothing(tmp_path: Path) -> None:
    decoder = FakeDecoder()
    events = [
        replace(event, note=EVIL) if isinstance(event, RoundDone) else event
        for event in decoder.stream(
            f"a {EVIL} b", DecodeConfig(method="ar"), session=decoder.session()
        )
    ]
    engine = ReplayEngine(write_trace(tmp_path / "run.jsonl", events, decoder.words))
    async with running(engine) as (app, pilot):
        await pilot.press("left_square_bracket", "g")
        await settle(pilot)
        assert "a ␛]0;owned" in screen_text(app)
        assert not controls(screen_text(app))


@pytest.mark.parametrize("word", ["[/", "[/*", "[/INST]", "[i]", "[a-z]"])
async def test_a_token_that_looks_like_markup_stays_itself(tmp_path: Path, word: str) -> None:
    decoder = FakeDecoder()
    events = list(decoder.stream("x", DecodeConfig(), session=decoder.session()))
    last = next(e for e in reversed(events) if isinstance(e, RoundDone) and e.bonus is not None)
    words = list(decoder.words)
    words[last.bonus or 0] = word
    engine = ReplayEngine(write_trace(tmp_path / "run.jsonl", events, words))
    async with running(engine) as (app, pilot):
        app.main.go(last.round)
        await settle(pilot)
        title = next(line for line in screen_text(app).splitlines() if "─ round " in line)
        assert f"bonus ‘{word}’" in title
        await pilot.press("slash", *word)
        await settle(pilot)
        assert word in screen_text(app)

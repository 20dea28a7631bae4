from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text
from textual.app import App, ComposeResult
from textual.geometry import Offset, Size
from textual.pilot import Pilot
from textual.selection import Selection

from dartree_tui.palette import Palette
from dartree_tui.widgets.panel import TextPanel, wrapped
from tests.tui.snapshots import screen_text

CONSOLE = Console(width=200)


class Note(TextPanel):
    """Shows what it was given."""

    said = ""

    def write(self, size: Size, palette: Palette) -> Text:
        return Text(self.said)

    def say(self, text: str) -> None:
        self.said = text
        self.rewrite()


class Page(App[None]):
    CSS = "Note { height: 1fr; }"

    def compose(self) -> ComposeResult:
        yield Note()

    @property
    def note(self) -> Note:
        return self.query_one(Note)


@given(
    st.lists(st.text("ab 日本é", max_size=30), max_size=6).map("\n".join),
    st.integers(2, 20),
)
def test_every_piece_knows_where_it_came_from(text: str, width: int) -> None:
    whole = text.split("\n")
    lines = wrapped(Text(text), width, CONSOLE)
    assert [line.row for line in lines] == sorted(line.row for line in lines)
    assert {line.row for line in lines} == set(range(len(whole)))
    for line in lines:
        end = line.start + len(line.text)
        assert whole[line.row][line.start : end] == line.text.plain
        assert line.text.cell_len <= width
    for row, words in enumerate(whole):
        shown = "".join(line.text.plain for line in lines if line.row == row)
        assert shown.replace(" ", "") == words.replace(" ", "")


@asynccontextmanager
async def showing(text: str, size: tuple[int, int]) -> AsyncIterator[tuple[Page, Pilot[None]]]:
    """A page with this text on it."""
    app = Page()
    async with app.run_test(size=size) as pilot:
        app.note.say(text)
        await pilot.pause()
        yield app, pilot


async def test_text_that_does_not_fit_scrolls_beside_a_bar() -> None:
    async with showing("short", (12, 4)) as (app, pilot):
        assert not app.note.show_vertical_scrollbar
        app.note.say("123456789012\nb\nc\nd\ne")
        await pilot.pause()
        assert app.note.show_vertical_scrollbar
        rows = screen_text(app).splitlines()
        assert [row[:11].rstrip() for row in rows] == ["12345678901", "2", "b", "c"]
        await pilot.press("end")
        await pilot.pause()
        assert screen_text(app).splitlines()[-1].startswith("e")
        app.note.say("short")
        await pilot.pause()
        assert not app.note.show_vertical_scrollbar
        assert screen_text(app).splitlines()[0].startswith("short")


async def test_only_lines_that_changed_are_painted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with showing("one\ntwo\nthree\nfour", (20, 6)) as (app, pilot):
        painted: list[int] = []
        line = app.note.render_line
        monkeypatch.setattr(app.note, "render_line", lambda y: painted.append(y) or line(y))
        app.note.say("one\n2\nthree")
        await pilot.pause()
        assert sorted(set(painted)) == [1, 3]
        assert screen_text(app).split() == ["one", "2", "three"]


async def test_new_text_does_not_arrange_the_screen_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async with showing("one\ntwo", (20, 6)) as (app, pilot):
        arranged: list[object] = []
        layout = app.screen._refresh_layout
        monkeypatch.setattr(
            app.screen, "_refresh_layout", lambda *a, **k: arranged.append(a) or layout(*a, **k)
        )
        app.note.say("one\ntwo\nthree\nfour")
        await pilot.pause()
        assert not arranged
        assert "four" in screen_text(app)


async def test_selected_text_is_copied_as_it_was_before_it_was_wrapped() -> None:
    async with showing("a line of many words\nanother", (12, 6)) as (app, pilot):
        await pilot.mouse_down(app.note, offset=(2, 0))
        await pilot.hover(app.note, offset=(3, 2))
        await pilot.mouse_up(app.note, offset=(3, 2))
        await pilot.pause()
        assert app.screen.get_selected_text() == "line of many words\nanot"


async def test_only_what_is_selected_lights_up() -> None:
    """Also where the selection ends on an earlier or begins on a later piece of the same line."""
    async with showing("a line of many words\nanother", (12, 6)) as (app, pilot):

        def lit() -> list[str]:
            background = app.note.selection_style.bgcolor
            return [
                "".join(s.text for s in app.note.render_line(y) if s.style.bgcolor == background)
                for y in range(3)
            ]

        for begin, end, shown in (
            (2, 5, ["line", "", ""]),
            (2, 12, ["line of ", "man", ""]),
            (13, 15, ["", "y w", ""]),
        ):
            app.screen.selections = {app.note: Selection(Offset(begin, 0), Offset(end + 1, 0))}
            await pilot.pause()
            assert lit() == shown

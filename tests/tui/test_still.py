from __future__ import annotations

from typing import Any

import pytest
from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Markdown, Static

from dartree_tui.widgets.still import Still, StillLine, StillMarkdown, StillText
from tests.tui.snapshots import screen_text


class Pane(VerticalScroll, Still):
    """What a growing text scrolls in."""


class Page(App[None]):
    CSS = """
    Pane { height: 1fr; } .line, Markdown, .text { height: auto; }
    .mark { width: 2; } Markdown { width: 1fr; margin: 0; padding: 0; }
    """

    def compose(self) -> ComposeResult:
        with Pane():
            with StillLine(classes="line"):
                yield StillText("> ", classes="mark")
                yield StillMarkdown()
            yield StillText("", classes="text")

    def count(self) -> list[object]:
        """Notes down every arrangement from now on."""
        arranged: list[object] = []
        layout = self.screen._refresh_layout

        def counted(*args: Any, **named: Any) -> None:
            arranged.append(args)
            layout(*args, **named)

        self.screen._refresh_layout = counted  # type: ignore[method-assign]
        return arranged


async def test_growing_text_is_arranged_once() -> None:
    app = Page()
    async with app.run_test(size=(40, 12)) as pilot:
        await pilot.pause()
        arranged = app.count()
        for text in ("one", "one\ntwo\nthree", "one"):
            arranged.clear()
            app.query_one(".text", Static).update(text)
            await pilot.pause()
            assert len(arranged) == 1
            assert screen_text(app).split() == [">", *text.split()]


@pytest.mark.parametrize(
    "pieces", [("some *words*", " and as many more as a second line needs"), ("a\n", "b\nc\n")]
)
async def test_a_growing_document_is_arranged_once(pieces: tuple[str, str]) -> None:
    app = Page()
    async with app.run_test(size=(40, 12)) as pilot:
        document = app.query_one(Markdown)
        await document.append(pieces[0])
        await pilot.pause()
        arranged = app.count()
        await document.append(pieces[1])
        await pilot.pause()
        assert len(arranged) == 1
        words = "".join(pieces).replace("*", "").split()
        assert screen_text(app).split() == [">", *words]


async def test_a_pane_gets_its_scroll_bar_all_the_same() -> None:
    app = Page()
    async with app.run_test(size=(40, 6)) as pilot:
        text, pane = app.query_one(".text", Static), app.query_one(Pane)
        text.update("\n".join(map(str, range(20))))
        await pilot.pause()
        assert pane.show_vertical_scrollbar
        pane.scroll_end(animate=False)
        await pilot.pause()
        assert screen_text(app).splitlines()[-1].startswith("19")
        text.update("short")
        await pilot.pause()
        assert not pane.show_vertical_scrollbar
        assert screen_text(app).split() == [">", "short"]


async def test_blocks_keep_the_style_sheet_s_names() -> None:
    app = Page()
    async with app.run_test(size=(40, 12)) as pilot:
        await app.query_one(Markdown).update("# head\n\n- item\n\n```py\ncode\n```\n\n> quote")
        await pilot.pause()
        for name in ("MarkdownH1", "MarkdownBulletList", "MarkdownFence", "MarkdownBlockQuote"):
            assert isinstance(app.query_one(name), Still)

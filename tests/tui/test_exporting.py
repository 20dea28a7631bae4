"""Writing the conversation where the user says."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.widgets import Input, Static

from dartree_tui.engines.fake_decoder import ANSWER
from tests.tui.driving import ask, running, settle


async def test_exporting_asks_before_it_replaces(tmp_path: Path) -> None:
    async with running() as (app, pilot):
        await ask(pilot, "explain")
        target = tmp_path / "chat.md"
        target.write_text("mine")
        await pilot.press("escape", "e")
        field = app.screen.query_one("#path")
        field.value = str(target)  # type: ignore[attr-defined]
        await pilot.press("enter")
        assert target.read_text() == "mine"
        assert "Press enter again" in str(app.screen.query_one(".hint", Static).render())
        await pilot.press("enter")
        assert ANSWER.strip() in target.read_text()
        assert len(app.screen_stack) == 1


async def test_exporting_asks_again_for_another_file(tmp_path: Path) -> None:
    async with running() as (app, pilot):
        await ask(pilot, "explain")
        await pilot.press("escape", "e")
        field = app.screen.query_one("#path", Input)
        for name in ("a.md", "b.md"):
            (tmp_path / name).write_text("mine")
            field.value = str(tmp_path / name)
            await pilot.press("enter")
            assert name in str(app.screen.query_one(".hint", Static).render())
        assert [p.read_text() for p in sorted(tmp_path.glob("*.md"))] == ["mine", "mine"]
        await pilot.press("enter")
        assert ANSWER.strip() in (tmp_path / "b.md").read_text()


@pytest.mark.parametrize("path", ["~nosuch/x.md", "x" * 300 + ".md", "[/x].md\0"])
async def test_exporting_to_an_impossible_path_says_so(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with running() as (app, pilot):
        await ask(pilot, "explain")
        await pilot.press("escape", "e")
        app.screen.query_one("#path", Input).value = path
        await pilot.press("enter")
        await settle(pilot)
        assert len(app.screen_stack) == 2
        assert "Nothing was written" in str(app.screen.query_one(".hint", Static).render())

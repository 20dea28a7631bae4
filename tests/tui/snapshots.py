"""Text-grid snapshots: what an app's screen says, kept as plain text under `grids/`.

Use the `snapshot` fixture: `snapshot(app, "tree_grid_80x24")`. A difference fails the test and
shows both screens line by line. To accept new screens run pytest with
DARTREE_UPDATE_SNAPSHOTS=1 and look at the diff in version control. Colours are not compared:
what matters must be readable without them.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from textual.app import App

GRIDS = Path(__file__).parent / "grids"
UPDATE = "DARTREE_UPDATE_SNAPSHOTS"

Snapshot: TypeAlias = Callable[[App[Any], str], None]


def screen_text(app: App[Any]) -> str:
    """The screen as text, one line a row, blanks at the ends of lines removed."""
    # Textual offers screens as SVG or ANSI only; the compositor has the cells themselves.
    strips = app.screen._compositor.render_strips()
    lines = ["".join(segment.text for segment in strip).rstrip() for strip in strips]
    return "\n".join(lines).rstrip() + "\n"


def compare(text: str, name: str, folder: Path = GRIDS) -> None:
    """Compare with the stored text, or store it when updating.

    Raises:
        AssertionError: they differ, or nothing is stored.
    """
    path = folder / f"{name}.txt"
    if os.environ.get(UPDATE):
        folder.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return
    remedy = f"If this is right, run again with {UPDATE}=1."
    assert path.exists(), f"There is no snapshot {path.name} yet. {remedy}\n{text}"
    stored = path.read_text(encoding="utf-8")
    if stored != text:
        diff = difflib.unified_diff(
            stored.splitlines(), text.splitlines(), "stored", "now", lineterm="", n=100
        )
        pytest.fail(f"{path.name} differs. {remedy}\n" + "\n".join(diff), pytrace=False)


@pytest.fixture
def snapshot() -> Snapshot:
    """Compares an app's screen with a stored text."""

    def check(app: App[Any], name: str) -> None:
        compare(screen_text(app), name)

    return check

"""One frame of a replay, as an SVG file."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from dartree_core.errors import ConfigError, TraceError

if TYPE_CHECKING:
    from textual.pilot import Pilot

    from dartree_tui.app import DartreeApp


def render(app: DartreeApp, out: Path, size: tuple[int, int], number: int | None) -> None:
    """Render a replay without a terminal.

    Args:
        app: An app on a replay engine, not yet run.
        out: The file; written whole or not at all.
        size: Columns and rows.
        number: Round to show, counted from 1 over all turns; None for the last.

    Raises:
        TraceError: the trace cannot be read, or the file cannot be written.
        ConfigError: there is no such round.
    """
    drawn: list[str] = []

    async def pilot(pilot: Pilot[object]) -> None:
        client = app.client
        while not client.complete or len(client.intake):
            await asyncio.sleep(0.01)
        if number is not None and number <= len(client.store.marks):
            app.main.view.go(client.store, number - 1)
            app.main.refresh_all()
        await app.settle()
        drawn.append(app.export_screenshot(title="dartree"))
        app.exit()

    app.run(headless=True, size=size, auto_pilot=pilot)
    client = app.client
    if client.trouble:
        raise TraceError(client.trouble)
    rounds = len(client.store.marks)
    if number is not None and number > rounds:
        raise ConfigError(
            f"--round is {number}, but the trace has {rounds} rounds.", "Choose one of those."
        )
    if not drawn:
        raise TraceError("The screen could not be drawn.", "Try again with --debug.")
    try:
        out.write_text(drawn[0], encoding="utf-8")
    except OSError as error:
        raise TraceError(
            f"{out} cannot be written: {error.strerror}.", "Choose another file."
        ) from error

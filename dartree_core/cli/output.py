"""What the commands' output has in common: formats, sizes, progress bars."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from dartree_core.bundles.progress import Progress


class Format(StrEnum):
    """How a command prints its findings."""

    TEXT = "text"
    JSON = "json"


def print_json(data: Any) -> None:
    """One indented JSON document on standard output."""
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False))


def size_text(size: int) -> str:
    """Bytes as people read them: `538 MB`."""
    value, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if value >= 10 or unit == "B" else f"{value:.1f} {unit}"


def count_text(count: int) -> str:
    """A number of weights as people read it: `135M`."""
    if count < 1_000_000:
        return f"{count:,}"
    value, unit = (count / 1e6, "M") if count < 1e9 else (count / 1e9, "B")
    return f"{value:.0f}{unit}" if value >= 100 else f"{value:.1f}{unit}"


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """A listener that draws a bar on standard error, or nothing when that is no terminal.

    Use it as `with progress_bars() as progress: load("demo", progress=progress)`.
    """
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    bars = Bars(
        TextColumn("{task.description}"),
        BarColumn(bar_width=28),
        TextColumn("{task.fields[amount]}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    current: list[Any] = ["", None]

    def progress(what: str, done: int, total: int, unit: str) -> None:
        # One bar at a time: a new name replaces the last.
        if what != current[0]:
            if current[1] is not None:
                bars.remove_task(current[1])
            current[:] = [what, bars.add_task(what, total=total or None, amount="")]
        bars.update(
            current[1],
            completed=done,
            total=total or None,
            amount=_amount(done, total) if unit == "bytes" else "",
        )

    with bars:
        yield progress


def _amount(done: int, total: int) -> str:
    return f"{size_text(done)} of {size_text(total)}" if total else size_text(done)

"""What the commands' output has in common: formats, sizes, progress bars."""

from __future__ import annotations

import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dartree_core.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from dartree_core.bundles.progress import Progress

_PIPE_WIDTH = 160


class Format(StrEnum):
    """How a command prints its findings."""

    TEXT = "text"
    JSON = "json"


def print_json(data: Any) -> None:
    """One indented JSON document on standard output, as UTF-8 whatever the locale."""
    text = json.dumps(data, indent=2, ensure_ascii=False)
    typer.echo(text.encode("utf-8", "backslashreplace"))


def stdout_console() -> Console:
    """Standard output: colours on a terminal that wants them, plain and wide elsewhere."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _PIPE_WIDTH
    return console


def tolerate_any_text() -> None:
    """Let standard output and error escape what their encoding cannot say, not fail at it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def check_writable(path: Path, option: str) -> None:
    """See before the work begins that a file can be made where `option` wants its results.

    Raises:
        ConfigError: There is no such folder, it cannot be written, or the place is no file's.
    """
    if not path.parent.is_dir():
        raise ConfigError(
            f"The folder {path.parent} does not exist.", f"Create it, or choose another {option}."
        )
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is no file.", f"Give {option} the name of a file.")
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise ConfigError(
            f"The folder {path.parent} cannot be written ({error}).", f"Choose another {option}."
        ) from error


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

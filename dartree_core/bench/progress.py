"""Showing how far a run is: a bar on a terminal, lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dartree_core.bench.run import Progress

_EVERY_S = 20.0
"""Seconds between lines where there is no terminal."""


@contextmanager
def shown(quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """A bar with time left on a terminal's standard error, now and then a line elsewhere."""
    if quiet:
        yield lambda _: None
        return
    if not sys.stderr.isatty():
        yield _Lines().tell
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bars

    bars = Bars(
        TextColumn("{task.description}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]}"),
        console=Console(stderr=True),
        transient=True,
    )
    task = bars.add_task("", total=None, left="")

    def tell(now: Progress) -> None:
        bars.update(
            task,
            description=now.what,
            completed=now.done,
            total=now.total,
            left=_left(now.seconds_left),
        )

    with bars:
        yield tell


@dataclass(slots=True)
class _Lines:
    """Progress as lines, seldom enough for a log."""

    last: float = 0.0

    def tell(self, now: Progress) -> None:
        """Write a line when the last one is old enough."""
        clock = time.monotonic()
        if self.last and clock - self.last < _EVERY_S:
            return
        self.last = clock
        left = _left(now.seconds_left)
        print(
            f"{now.done}/{now.total} {now.what}{', ' if left else ''}{left}",
            file=sys.stderr,
            flush=True,
        )


def _left(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02} left" if hours else f"{minutes}:{rest:02} left"

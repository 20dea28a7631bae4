"""Printing a run while it happens: the answer, and a line of figures that follows it."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from dartree_core.events import Event, PrefillDone, RoundDone, TurnFinished
from dartree_core.metrics import RunningMetrics


class Printer(Protocol):
    """Reads a stream of events and shows it."""

    def show(self, event: Event) -> None:
        """Take the next event."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class PipePrinter:
    """Writes text as it becomes final, nothing else: for pipes and files."""

    def __init__(self, stdout: Any = None) -> None:
        self._out = stdout or sys.stdout
        self._open = False

    def show(self, event: Event) -> None:
        """Write the event's text, at once."""
        delta = getattr(event, "text_delta", "")
        if delta:
            self._out.write(delta)
            self._out.flush()
            self._open = True
        if isinstance(event, TurnFinished):
            self._end_line()

    def _end_line(self) -> None:
        self._out.write("\n")
        self._out.flush()
        self._open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._open and not isinstance(error, OSError):  # what is said of the error starts anew
            self._end_line()


class TerminalPrinter:
    """Text on a terminal, with a line of live figures below the part still growing.

    Finished lines are printed once and scroll away as usual; only the unfinished line and the
    figures are redrawn.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._metrics = RunningMetrics()
        self._growing = ""
        self._last: RoundDone | None = None
        self._live = Live(console=console, transient=True, refresh_per_second=12)

    def show(self, event: Event) -> None:
        """Print finished lines and redraw the rest."""
        self._metrics.update(event)
        if isinstance(event, RoundDone):
            self._last = event
        self._growing += getattr(event, "text_delta", "")
        *lines, self._growing = self._growing.split("\n")
        for line in lines:
            self._console.print(Text(line), soft_wrap=True)
        if isinstance(event, TurnFinished):
            self._console.print(Text(self._growing), soft_wrap=True)
            self._growing = ""
        if isinstance(event, PrefillDone | RoundDone):
            self._live.update(self._view())

    def _view(self) -> Group:
        width, height = self._console.size
        rows = Text(self._growing).wrap(self._console, width)[-max(1, height - 4) :]
        return Group(*rows, Text(status_line(self._metrics, self._last), style="dim"))

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._growing:
            self._console.print(Text(self._growing), soft_wrap=True)
        self._live.update(Text(""))
        self._live.stop()


def status_line(metrics: RunningMetrics, last: RoundDone | None) -> str:
    """Figures of a running turn in one line."""
    figures = metrics.summary()
    parts = [f"{figures['num_emitted_tokens']} tokens"]
    if figures["tokens_per_second"]:
        parts.append(f"{figures['tokens_per_second']:.1f} tok/s")
    if figures["mean_acceptance_length"]:
        parts.append(f"τ {figures['mean_acceptance_length']:.2f}")
    if last is not None and last.tree.num_verified:
        parts.append(f"round {last.round + 1}: {len(last.accepted) - 1} accepted")
        parts.append(f"tree {last.tree.num_verified} of {len(last.tree) - 1}")
        if last.expected is not None:
            parts.append(f"expected {last.expected:.1f}, got {len(last.accepted)}")
    elif last is not None and last.note:
        parts.append(last.note)
    return " · ".join(parts)

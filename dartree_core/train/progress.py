"""What a training run shows: live figures on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

from dartree_core.train.measure import Accuracy, chain_length
from dartree_core.train.trainer import StepReport

if TYPE_CHECKING:
    from rich.console import Console, Group

_KEEP = 0.95
"""Share of the running figures that one step leaves standing."""

_PLAIN_SECONDS = 30.0


class Running:
    """Smoothed figures of the last steps.

    Args:
        steps: The run's length.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.last: StepReport | None = None
        self._loss = self._weight = self._blocks = self._seconds = 0.0
        self._counts: list[list[float]] = []

    def update(self, report: StepReport) -> None:
        """Take in a step."""
        self.last = report
        self._loss = _KEEP * self._loss + report.loss
        self._weight = _KEEP * self._weight + 1
        self._blocks = _KEEP * self._blocks + report.new_blocks
        self._seconds = _KEEP * self._seconds + report.seconds
        if not self._counts:
            self._counts = [[0.0] * len(row) for row in report.counts]
        for row, new in zip(self._counts, report.counts, strict=True):
            row[:] = [_KEEP * a + b for a, b in zip(row, new, strict=True)]

    @property
    def loss(self) -> float:
        """Mean objective."""
        return self._loss / max(self._weight, 1e-9)

    @property
    def blocks_per_second(self) -> float:
        """Blocks trained on in a second."""
        return self._blocks / max(self._seconds, 1e-9)

    @property
    def seconds_left(self) -> float:
        """Until the run's last step, at the present pace."""
        if self.last is None:
            return 0.0
        return (self.steps - self.last.step) * self._seconds / max(self._weight, 1e-9)

    def accuracy(self, row: int) -> list[float]:
        """Per slot the share of right argmaxes: row 1 base, row 2 corrected."""
        return [
            h / n if n else 0.0 for h, n in zip(self._counts[row], self._counts[0], strict=True)
        ]

    @property
    def acceptance(self) -> float:
        """Tokens a corrected chain would emit per round, by these accuracies."""
        return chain_length(self._counts)

    def line(self) -> str:
        """All figures in one line."""
        if self.last is None:
            return ""
        slots = len(self._counts[0])
        return (
            f"step {self.last.step}/{self.steps}  {self.last.blocks:,} blocks  "
            f"loss {self.loss:.3f}  corrected {_shares(self.accuracy(2))}  "
            f"acceptance ~{self.acceptance:.2f}  "
            f"{self.blocks_per_second * slots:.0f} tokens/s  {_clock(self.seconds_left)} left"
        )


class TrainingDisplay:
    """Shows a run while it goes; use it as a context.

    Args:
        console: Where to.
        steps: The run's length.
        quiet: Show nothing but notes (processes that do not lead).
    """

    def __init__(self, console: Console, steps: int, *, quiet: bool = False) -> None:
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self.running = Running(steps)
        self._console, self._quiet = console, quiet
        self._measured = ""
        self._said_at = 0.0
        self._bar = Progress(
            TextColumn("training"),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]} left"),
        )
        self._task = self._bar.add_task("", total=steps, left="?")
        self._live = (
            Live(console=console, refresh_per_second=4, get_renderable=self._render)
            if console.is_terminal and not quiet
            else None
        )

    def __enter__(self) -> TrainingDisplay:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live:
            self._live.stop()

    def update(self, report: StepReport) -> None:
        """Show a step."""
        self.running.update(report)
        if self._live:
            left = _clock(self.running.seconds_left)
            self._bar.update(self._task, completed=report.step, left=left)
        elif not self._quiet and time.monotonic() - self._said_at >= _PLAIN_SECONDS:
            self._said_at = time.monotonic()
            self.note(self.running.line())

    def measured(self, step: int, accuracy: Accuracy) -> None:
        """Show a held-out measurement."""
        self._measured = (
            f"held-out at step {step}: base {_shares(accuracy.base)}  corrected "
            f"{_shares(accuracy.corrected)}  chains {accuracy.dflash:.2f} / {accuracy.domino:.2f}"
        )
        if not self._live:
            self.note(self._measured)

    def note(self, text: str) -> None:
        """Print a line above the live part."""
        if not self._quiet:
            self._console.print(text, highlight=False, soft_wrap=True)

    def _render(self) -> Group:
        from rich.console import Group
        from rich.text import Text

        running, lines = self.running, []
        if running.last is not None:
            slots = len(running.last.counts[0])
            rate = running.blocks_per_second
            lines = [
                f"loss {running.loss:.3f}   rate {running.last.lr:.1e}   "
                f"{running.last.blocks:,} blocks   {rate:.0f} blocks/s   "
                f"{rate * slots:.0f} tokens/s",
                f"base {_shares(running.accuracy(1))}   corrected {_shares(running.accuracy(2))}   "
                f"acceptance ~{running.acceptance:.2f}",
            ]
        if self._measured:
            lines.append(self._measured)
        return Group(self._bar, *(Text(line) for line in lines))


def _shares(values: list[float] | tuple[float, ...]) -> str:
    return "/".join(f"{v:.2f}".removeprefix("0") for v in values)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"

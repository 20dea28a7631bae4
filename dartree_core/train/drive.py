"""A run in the foreground: what is shown, when it is measured, and what signals do."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console

from dartree_core.train.progress import TrainingDisplay
from dartree_core.train.recipe import Recipe
from dartree_core.train.run import Run


def drive(run: Run, recipe: Recipe, out: Path) -> bool:
    """Train to the recipe's last step.

    Returns:
        False when a signal ended the run early; its state is saved.
    """
    trainer = run.trainer
    display = TrainingDisplay(Console(stderr=True), recipe.run.steps, quiet=not trainer.world.leads)
    for note in run.notes:
        display.note(note)
    if run.resumed:
        display.note(f"Going on with the run in {out} at step {trainer.counters.step}.")
    with display, _stopped_by_signals(trainer.stop):
        if run.resumed and (accuracy := run.measure_if_missed()) is not None:
            display.measured(trainer.counters.step, accuracy)
        for report in trainer.steps():
            display.update(report)
            accuracy = run.measure_if_due(report.step)
            if accuracy is not None:
                display.measured(report.step, accuracy)
    finished = trainer.counters.step >= recipe.run.steps
    if finished:
        display.note(f"Done: {out} holds the drafter. Use it with --draft {out}.")
    else:
        display.note(
            f"Stopped after step {trainer.counters.step}; the same command goes on from there."
        )
    return finished


@contextmanager
def _stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM ends training after its step; a second one ends it at once."""
    before = {s: signal.getsignal(s) or signal.SIG_DFL for s in (signal.SIGINT, signal.SIGTERM)}

    def handler(number: int, _frame: FrameType | None) -> None:
        stop()
        signal.signal(number, before[signal.Signals(number)])

    for name in before:
        signal.signal(name, handler)
    try:
        yield
    finally:
        for name, old in before.items():
            signal.signal(name, old)

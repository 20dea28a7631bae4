from __future__ import annotations

import io

import pytest
from rich.console import Console

from dartree_core.train.measure import Accuracy, chain_length
from dartree_core.train.progress import Running, TrainingDisplay
from dartree_core.train.trainer import StepReport


def report(step: int, loss: float = 2.0, seconds: float = 0.5) -> StepReport:
    return StepReport(
        step=step,
        blocks=step * 10,
        new_blocks=10,
        loss=loss,
        base=2.5,
        corrected=1.5,
        feature=0.5,
        counts=((10.0, 8.0), (4.0, 2.0), (5.0, 4.0)),
        lr=1e-3,
        share=0.7,
        grad_norm=1.0,
        seconds=seconds,
        elapsed=step * seconds,
    )


def test_running_figures() -> None:
    running = Running(steps=20)
    for step in range(1, 11):
        running.update(report(step))
    assert running.loss == pytest.approx(2.0)
    assert running.blocks_per_second == pytest.approx(20.0)
    assert running.seconds_left == pytest.approx(5.0)
    assert running.accuracy(1) == pytest.approx([0.4, 0.25])
    assert running.accuracy(2) == pytest.approx([0.5, 0.5])
    assert running.acceptance == pytest.approx(1.75)


def test_recent_steps_weigh_more() -> None:
    running = Running(steps=100)
    for step in range(1, 51):
        running.update(report(step, loss=4.0 if step <= 25 else 2.0))
    assert 2.0 < running.loss < 3.0


def test_slots_nothing_reached_do_not_divide_by_zero() -> None:
    assert chain_length([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]) == 1.0
    assert Running(5).line() == ""


@pytest.mark.parametrize("terminal", [True, False])
def test_a_run_is_shown(terminal: bool) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=120)
    with TrainingDisplay(console, 20) as display:
        display.update(report(1))
        display.measured(1, Accuracy(100, (0.4, 0.2), (0.5, 0.4), 1.5, 1.7))
    text = out.getvalue()
    assert "1/20" in text
    assert ".50/.50" in text
    assert "acceptance ~1.75" in text
    assert "tokens/s" in text
    assert "left" in text
    assert "held-out at step 1: base .40/.20  corrected .50/.40  chains 1.50 / 1.70" in text


def test_processes_that_do_not_lead_say_nothing() -> None:
    out = io.StringIO()
    with TrainingDisplay(Console(file=out), 20, quiet=True) as display:
        display.update(report(1))
        display.note("hello")
    assert out.getvalue() == ""

"""The line of figures under a growing answer."""

from __future__ import annotations

import io
from contextlib import suppress

from dartree_core.cli.live import PipePrinter, status_line
from dartree_core.config import DecodeConfig
from dartree_core.engine import Decoder
from dartree_core.engine.costs import PassCosts
from dartree_core.events import PrefillDone, RoundDone, TurnFinished
from dartree_core.metrics import RunningMetrics
from tests.core import tiny


def lines(decoder: Decoder) -> list[tuple[RoundDone, str]]:
    metrics = RunningMetrics()
    found = []
    config = DecodeConfig(max_new_tokens=24).with_changes(budget="auto")
    for event in decoder.stream([7, 100, 31, 8, 250], config):
        metrics.update(event)
        if isinstance(event, RoundDone):
            found.append((event, status_line(metrics, event)))
    return found


def test_a_round_says_what_was_expected_and_what_came() -> None:
    trained = tiny.trained("tied")
    decoder = Decoder(trained.target, trained.drafter)
    decoder.budget_policy().costs = PassCosts({1: 1e4, 65: 1e4})  # trees are free
    drafted = [(done, line) for done, line in lines(decoder) if done.tree.num_verified]
    assert drafted
    for done, line in drafted:
        assert done.expected is not None
        assert f"tree {done.tree.num_verified} of {len(done.tree) - 1}" in line
        assert f"expected {done.expected:.1f}, got {len(done.accepted)}" in line


def test_a_plain_round_says_why() -> None:
    trained = tiny.trained("tied")
    decoder = Decoder(trained.target, trained.drafter)
    decoder.budget_policy().losses.book(2.0)  # more than a window may lose
    for done, line in lines(decoder):
        assert not done.tree.num_verified
        assert done.note
        assert done.note in line


def test_an_answer_that_breaks_off_ends_its_line() -> None:
    out = io.StringIO()
    begun = PrefillDone(0, 5, 0, 0.1, 0.1, 7, "Once upon", (0, 9))
    with suppress(RuntimeError), PipePrinter(out) as printer:
        printer.show(begun)
        raise RuntimeError("the device is gone")
    assert out.getvalue() == "Once upon\n"

    out = io.StringIO()
    with PipePrinter(out) as printer:
        printer.show(begun)
        printer.show(TurnFinished(0, "length", "Once upon", (7,)))
    assert out.getvalue() == "Once upon\n"

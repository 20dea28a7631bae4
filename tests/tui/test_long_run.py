"""Hours of chat, thousands of rounds: bounded memory, and work that does not grow with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dartree_core.events import RoundDone, RunStarted, TurnFinished, TurnStarted
from dartree_core.tree import DraftTree
from dartree_tui.engines.replay import ReplayEngine
from dartree_tui.store import KEEP_ROUNDS
from dartree_tui.widgets.timeline import Timeline
from tests.tui.driving import running, settle, write_trace
from tests.tui.samples import make_round

ROUNDS, TURNS = 600, 60
"""Enough for most of them to be out of memory."""


def long_trace(path: Path) -> Path:
    done = make_round()
    tree: DraftTree = done.tree
    size = len(done.text_delta)
    events: list[object] = [RunStarted(prompt="go on")]
    for turn in range(TURNS):
        events.append(TurnStarted(turn, "go on", (), "chat", {}))
        text = ""
        for number in range(ROUNDS // TURNS):
            changes = {name: getattr(done, name) for name in done.__slots__}
            span = (number * size, (number + 1) * size)
            changes |= {"turn": turn, "round": number, "span": span, "tree": tree}
            events.append(RoundDone(**changes))
            text += done.text_delta
        events.append(TurnFinished(turn, "eos", text, ()))
    return write_trace(path, events, None)  # type: ignore[arg-type]


def counted(call: Callable[[int], RoundDone], calls: list[int]) -> Callable[[int], RoundDone]:
    def fetch(offset: int) -> RoundDone:
        calls.append(offset)
        return call(offset)

    return fetch


async def test_a_long_run_stays_bounded_and_every_round_is_one_step_away(tmp_path: Path) -> None:
    path = long_trace(tmp_path / "long.jsonl")
    async with running(ReplayEngine(path), size=(100, 30)) as (app, pilot):
        store = app.client.store
        assert len(store.marks) == ROUNDS
        assert len(store._recent) <= KEEP_ROUNDS
        assert len(app.main.query("AnswerView")) <= 40, "old turns are no widgets"
        fetched: list[int] = []
        store._fetch = counted(app.client.spool.round, fetched)
        drawing = app.main.drawing
        for index in (0, ROUNDS // 2, 17, ROUNDS - 1, 3):
            before, lines = len(fetched), drawing.lines_built
            app.main.go(index)
            await settle(pilot)
            assert drawing.shown is not None
            assert drawing.shown.turn == store.marks[index].turn
            assert len(fetched) - before <= 1 + 40, "one round, and those of the speed curve"
            assert drawing.lines_built - lines <= 4 * app.size.height
        timeline = app.main.query_one(Timeline)
        assert len(timeline.window) <= app.size.width
        assert len(store._recent) <= KEEP_ROUNDS
        assert len(store.heights) == ROUNDS

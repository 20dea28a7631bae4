"""The app with the demo models behind it, in a worker process of its own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dartree_core.config import DecodeConfig
from dartree_core.trace import TraceReader
from dartree_tui.app import DartreeApp
from dartree_tui.client import Client
from dartree_tui.engines.process import ProcessEngine
from dartree_tui.recall import same_tokens
from dartree_tui.settings import Settings
from tests.tui.driving import until
from tests.tui.snapshots import screen_text

pytestmark = pytest.mark.demo

SETTINGS = Settings().changed("decode", max_new_tokens=24, budget=12)
PATIENCE = 120.0


def wait(client: Client, *states: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while client.status not in states or len(client.intake):
        client.pump()
        assert time.monotonic() < deadline, (client.status, list(client.notices))
        time.sleep(0.01)


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    client = Client(ProcessEngine, SETTINGS, tmp_path / "run.jsonl")
    client.start()
    wait(client, "ready", "off", "lost")
    assert client.status == "ready", list(client.notices)
    yield client
    client.close()


def test_chat_step_compare_die_and_go_on(client: Client, tmp_path: Path) -> None:
    assert client.models["target"]["name"] == "SmolLM2-135M-Instruct"
    assert client.store.baseline is not None

    client.ask("Why is the sky blue?")
    wait(client, "ready")
    turn = client.store.turns[0]
    assert turn.finished is not None
    assert turn.text == turn.finished.text == client.conversation.messages[1].content
    assert turn.metrics.summary() == turn.finished.metrics
    assert client.store.run is not None
    assert same_tokens(client.store.run.target, client.models["target"])
    tree = client.store.round(0).tree
    assert tree.target_logp is not None  # the app asks for full detail
    assert not list(tree.problems())

    client.step_mode(True)
    client.ask("And at night?")
    deadline = time.monotonic() + PATIENCE
    while len(client.store.turns) < 2 or client.store.turns[1].prefill is None:
        client.pump()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    rounds = len(client.store.marks)
    client.step("round")
    while len(client.store.marks) == rounds:
        client.pump()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.5)
    client.pump()
    assert len(client.store.marks) == rounds + 1
    client.step_mode(False)
    wait(client, "ready")
    assert client.store.turns[1].prefill is not None
    assert client.store.turns[1].prefill.reused_tokens > 0, "the conversation was read again"

    base = DecodeConfig(max_new_tokens=16)
    client.compare("Count to ten.", base, base.with_changes(method="ar"))
    wait(client, "ready")
    assert client.comparison is not None
    left, right = client.comparison.sides
    assert left.error == right.error == ""
    assert left.rounds <= right.rounds

    engine = client.engine
    assert isinstance(engine, ProcessEngine)
    assert engine._process is not None
    client.step_mode(True)
    rounds = len(client.store.marks)
    client.ask("Still there?")
    client.step("round")
    while len(client.store.marks) < rounds + 1:
        client.pump()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(engine._process.pid, signal.SIGKILL)
    wait(client, "lost")
    cut = client.conversation.messages[-1].content
    assert len(client.conversation.messages) == 6
    client.restart(go_on=True)
    wait(client, "ready")
    whole = client.conversation.messages[-1].content
    assert whole.startswith(cut)
    assert len(whole) > len(cut)
    client.regenerate()
    wait(client, "ready")
    assert client.conversation.messages[-1].content == whole, "it went on as it would have anyway"
    client.close()

    events = list(TraceReader(tmp_path / "run.jsonl"))
    assert sum(type(e).__name__ == "RoundDone" for e in events) == len(client.store.marks)


async def test_the_app_paints_before_it_loads_and_quits_in_the_middle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    engines: list[Any] = []

    def make() -> ProcessEngine:
        engines.append(ProcessEngine())
        return engines[-1]

    app = DartreeApp(make, SETTINGS, watch=False)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.main.painted)
        assert app.client.status in ("off", "loading")
        assert "Ask something" in screen_text(app)
        await until(pilot, lambda: app.client.status == "loading")
        process = engines[0]._process
        began = time.monotonic()
        await pilot.press("ctrl+q")
    assert process.wait(5) != 0
    assert time.monotonic() - began < 5

"""The worker as a program: a real process, real tiny models, its real pipes."""

from __future__ import annotations

import gc
import json
import os
import queue
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from dartree_core.config import DecodeConfig, TreeConfig
from dartree_core.errors import ConfigError
from dartree_core.trace import EventDecoder
from dartree_core.worker import Worker
from dartree_core.worker_protocol import Load, Reply, decode_reply

CHECKPOINTS = Path(__file__).parent.parent / "conformance" / "data" / "checkpoints"
PROMPT = [3, 14, 15, 9, 2, 6]
PATIENCE = 120.0


class Child:
    """A worker process and everything it has said."""

    def __init__(self, prelude: str = "") -> None:
        code = f"{prelude}\nfrom dartree_core.cli.worker import worker\nworker()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.lines: list[bytes] = []
        self._news: queue.Queue[bytes | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            self._news.put(line)
        self._news.put(None)

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def send(self, op: str, **fields: Any) -> None:
        self.write(json.dumps({"op": op, **fields}).encode() + b"\n")

    def record(self) -> dict[str, Any]:
        line = self._news.get(timeout=PATIENCE)
        assert line is not None, "the worker ended"
        return dict(json.loads(line))

    def until(self, kind: str) -> dict[str, Any]:
        while True:
            record = self.record()
            if record["kind"] == kind:
                return record

    def reply(self, op: str) -> Reply:
        while True:
            reply = decode_reply(self.until("Reply"))
            if reply.op == op:
                return reply

    def quiet(self, seconds: float = 0.4) -> bool:
        try:
            self._news.get(timeout=seconds)
        except queue.Empty:
            return True
        return False

    def ended(self, patience: float = 30.0) -> int:
        return self.process.wait(patience)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def child() -> Iterator[Child]:
    child = Child()
    yield child
    child.close()


@pytest.fixture(scope="module")
def _loaded() -> Iterator[Child]:
    child = Child()
    child.send(
        "load",
        id="l",
        target=str(CHECKPOINTS / "target_tied"),
        draft=str(CHECKPOINTS / "draft_tied_p0_s0"),
        device="cpu",
        dtype="float32",
    )
    reply = child.reply("load")
    assert reply.ok, reply
    assert reply.result["drafter"]["num_slots"] > 0
    yield child
    child.close()


@pytest.fixture
def loaded(_loaded: Child) -> Iterator[Child]:
    """One worker for many tests: each leaves it idle, running and at default settings."""
    yield _loaded
    _loaded.send("resume")
    _loaded.send("cancel")
    _loaded.reply("cancel")
    # A reset is refused while anything runs: silence alone may be a busy machine's.
    _loaded.send("reset")
    while not _loaded.reply("reset").ok:
        time.sleep(0.05)
        _loaded.send("reset")
    while not _loaded.quiet(0.2):
        pass


def generate(child: Child, tokens: int = 24, **fields: Any) -> None:
    config = {"max_new_tokens": tokens, "ignore_eos": True, **fields.pop("config", {})}
    child.send("generate", id="g", prompt=PROMPT, config=config, **fields)


def test_bad_requests_are_answered_and_survived(child: Child) -> None:
    child.write(b"{nope\n\xff\xfe\n\n")
    child.send("dance", id=1)
    child.send("generate", id=2, prompt="x")
    child.send("load", id=3, bundle=7)
    child.send("set", id=4, changes={"budget": -1})
    replies = [decode_reply(child.record()) for _ in range(6)]
    assert not any(reply.ok for reply in replies)
    assert [reply.id for reply in replies] == [None, None, 1, 2, 3, 4]
    assert "No model is loaded" in replies[3].message
    assert replies[5].remedy
    wrong = [{"depth_bonus": "deep"}, {"temperature": None}, {"self": 1}]
    for number, changes in enumerate(wrong, 10):
        child.send("set", id=number, changes=changes)
    child.write(b'{"op":"set","changes":' + b"[" * 200_000 + b"\n")
    replies = [decode_reply(child.record()) for _ in range(4)]
    assert not any(reply.ok for reply in replies)
    assert [reply.id for reply in replies] == [10, 11, 12, None]
    assert all(reply.message and reply.remedy for reply in replies)
    child.send("pause", id=5)
    assert child.reply("pause").ok


class Tuned:
    """A session that takes no other settings."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def retune(self, tree: TreeConfig) -> None:
        raise self._error

    def cancel(self) -> None:
        """It never began."""


@pytest.mark.parametrize("error", [ConfigError("Too long."), RuntimeError("A defect.")])
def test_settings_a_turn_refuses_are_kept_for_no_turn(error: Exception) -> None:
    said: list[Any] = []
    worker = Worker(lambda *_: None, said.append)  # type: ignore[arg-type, return-value]
    worker._running = Tuned(error)  # type: ignore[assignment]
    worker.read([b'{"op":"set","id":1,"changes":{"budget":3}}', b'{"op":"resume","id":2}'])
    assert [(reply.id, reply.ok) for reply in said] == [(1, False), (2, True)]
    assert worker._config == worker._turn_config == DecodeConfig()


class Looped:
    """Models that hold themselves."""

    def __init__(self) -> None:
        self.me = self


def test_the_models_before_are_gone_when_others_are_loaded() -> None:
    loaded: list[weakref.ref[Looped]] = []
    alive: list[bool] = []

    def load(*_: object) -> tuple[Any, dict[str, Any]]:
        alive.extend(ref() is not None for ref in loaded)
        models = Looped()
        loaded.append(weakref.ref(models))
        return models, {}

    gc.disable()
    try:
        worker = Worker(load, lambda _: None)
        worker._do(Load())
        worker._do(Load())
    finally:
        gc.enable()
    assert alive == [False]


def test_an_unknown_bundle_is_refused_by_name(child: Child) -> None:
    child.send("load", id=1, bundle="no-such-bundle")
    reply = child.reply("load")
    assert not reply.ok
    assert "no-such-bundle" in reply.message
    child.send("generate", id=2, prompt="x")
    assert not child.reply("generate").ok


def test_closing_stdin_ends_an_idle_worker(child: Child) -> None:
    assert child.process.stdin is not None
    child.process.stdin.close()
    assert child.ended() == 0


def test_a_shutdown_is_answered(child: Child) -> None:
    child.send("shutdown", id=1)
    assert child.reply("shutdown").ok
    assert child.ended() == 0


def test_what_is_queued_before_the_end_is_answered() -> None:
    said: list[Reply] = []
    worker = Worker(lambda *_: (None, {}), lambda record: said.append(cast("Reply", record)))
    worker.read([b'{"op": "load", "id": 1}', b'{"op": "shutdown", "id": 2}'])
    worker.run()
    assert {(reply.id, reply.ok) for reply in said} == {(1, False), (2, True)}
    assert "closing" in next(reply.message for reply in said if reply.id == 1)


def test_groups_of_settings_are_not_set_as_one(loaded: Child) -> None:
    loaded.send("set", id=1, changes={"tree": {"budget": 8}})
    reply = loaded.reply("set")
    assert not reply.ok
    assert "no setting tree" in reply.message
    loaded.send("set", id=2, changes={"budget": 8})
    assert loaded.reply("set").ok


def test_nothing_but_records_reaches_stdout() -> None:
    prelude = (
        "import dartree_core.worker as w, os, ctypes\n"
        "real = w.Worker.run\n"
        "def run(self):\n"
        "    print('python print'); os.write(1, b'raw write\\n'); os.system('echo child')\n"
        "    libc = ctypes.CDLL(None); libc.puts(b'native'); libc.fflush(None); real(self)\n"
        "w.Worker.run = run\n"
    )
    child = Child(prelude)
    child.send("shutdown")
    child.ended()
    assert child.process.stderr is not None
    said = child.process.stderr.read()
    for words in (b"python print", b"raw write", b"child", b"native"):
        assert words in said
    assert [json.loads(line)["kind"] for line in child.lines] == ["Reply"]
    child.close()


def test_a_turn_is_a_trace(loaded: Child) -> None:
    before = len(loaded.lines)
    generate(loaded, config={"stages": True, "detail": "full"}, fresh=True)
    assert loaded.reply("generate").result == {"reason": "length"}
    lines = [line for line in loaded.lines[before:] if b'"kind":"Reply"' not in line]
    decoder = EventDecoder()
    kinds = [type(event).__name__ for event in decoder.events(lines)]
    assert kinds[:3] == ["RunStarted", "TurnStarted", "PrefillDone"]
    assert kinds[-1] == "TurnFinished"
    assert {"BlockDrafted", "DepthExpanded", "TreePruned", "TreeVerified", "RoundDone"} < set(kinds)


def test_settings_reach_a_running_turn(loaded: Child) -> None:
    loaded.send("pause")
    generate(loaded, 40, config={"tree": {"budget": 12}})
    loaded.until("PrefillDone")
    loaded.send("set", changes={"budget": 3, "temperature": 0.0})
    applies = loaded.reply("set").result["applies"]
    assert applies == {"budget": "next round", "temperature": "next turn"}
    loaded.send("resume")
    rounds = []
    while (record := loaded.record())["kind"] != "TurnFinished":
        if record["kind"] == "RoundDone":
            rounds.append(record)
    assert {record["budget"] for record in rounds} == {3}
    assert all(sum(record["tree"]["kept"]) <= 4 for record in rounds)


def test_a_held_decoder_steps_by_stage_and_by_round(loaded: Child) -> None:
    loaded.send("pause")
    generate(loaded, 40, config={"stages": True})
    loaded.until("PrefillDone")
    assert loaded.quiet()
    loaded.send("step", by="stage")
    assert loaded.until("BlockDrafted")
    assert loaded.quiet()
    loaded.send("step", by="stage")
    assert loaded.until("DepthExpanded")["depth"] == 1
    assert loaded.quiet()
    loaded.send("step", by="round")
    assert loaded.until("RoundDone")["round"] == 0
    assert loaded.quiet()


def test_a_reader_that_rarely_looks_hears_of_few_stages(loaded: Child) -> None:
    def drafted_before_the_end() -> list[int]:
        rounds = []
        while (record := loaded.record())["kind"] != "TurnFinished":
            if record["kind"] == "BlockDrafted":
                rounds.append(record["round"])
        return rounds

    generate(loaded, 40, config={"stages": True}, fresh=True, glance_seconds=3600)
    assert drafted_before_the_end() == [0]
    loaded.reply("generate")

    loaded.send("pause")
    generate(loaded, 40, config={"stages": True}, fresh=True, glance_seconds=3600)
    loaded.until("PrefillDone")
    for number in range(3):  # whoever holds the decoder looks at all it does
        loaded.send("step", by="stage")
        assert loaded.until("BlockDrafted")["round"] == number
        loaded.send("step", by="round")
        loaded.until("RoundDone")
    loaded.send("resume")
    # One more round may have begun while the decoder was held.
    assert len(drafted_before_the_end()) <= 1


def test_a_held_turn_can_be_cancelled(loaded: Child) -> None:
    loaded.send("pause")
    generate(loaded, 400)
    loaded.until("PrefillDone")
    loaded.send("cancel")
    assert loaded.until("TurnFinished")["reason"] == "cancelled"
    assert loaded.reply("generate").result == {"reason": "cancelled"}


def test_one_thing_at_a_time(loaded: Child) -> None:
    loaded.send("pause")
    generate(loaded, 40)
    loaded.until("PrefillDone")
    loaded.send("generate", id="second", prompt=PROMPT)
    reply = loaded.reply("generate")
    assert (reply.id, reply.ok) == ("second", False)
    assert "busy with generate" in reply.message
    loaded.send("calibrate", id="third")
    assert not loaded.reply("calibrate").ok


def test_a_failed_turn_leaves_a_working_worker(loaded: Child) -> None:
    loaded.send("generate", id=1, prompt="text, but these models have no tokenizer")
    refused = loaded.reply("generate")
    assert not refused.ok
    assert refused.message
    loaded.send("generate", id=2, prompt=PROMPT, config={"method": "no such"})
    assert "no such" in loaded.reply("generate").message
    generate(loaded, 4)
    assert loaded.reply("generate").ok


def test_calibration_measures_plain_decoding(loaded: Child) -> None:
    loaded.send("calibrate", id=1, tokens=8, prompt=None)
    assert "no field prompt" in loaded.reply("calibrate").message
    loaded.send("calibrate", id=2, tokens=8)
    reply = loaded.reply("calibrate")
    assert reply.ok, reply
    assert reply.result["tokens_per_second"] > 0


def test_a_closed_stdin_ends_a_turn_in_the_middle() -> None:
    child = Child()
    child.send(
        "load",
        target=str(CHECKPOINTS / "target_tied"),
        draft=str(CHECKPOINTS / "draft_tied_p0_s0"),
        device="cpu",
        dtype="float32",
    )
    assert child.reply("load").ok
    generate(child, 400)
    child.until("PrefillDone")
    assert child.process.stdin is not None
    child.process.stdin.close()
    assert child.ended() == 0
    child.close()

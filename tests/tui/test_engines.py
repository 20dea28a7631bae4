from __future__ import annotations

import gzip
import io
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dartree_core.config import DecodeConfig
from dartree_core.errors import TraceError
from dartree_core.events import (
    LoadProgress,
    RoundDone,
    RunStarted,
    TurnFinished,
    TurnStarted,
    encode,
)
from dartree_core.pieces import TokenText
from dartree_core.trace import Recorder, TraceReader, to_line, token_ids
from dartree_core.worker_protocol import Load, Pause, Reply, encode_reply
from dartree_tui.engines import Intake, Lost, Record
from dartree_tui.engines.fake_decoder import FakeDecoder
from dartree_tui.engines.process import ProcessEngine, default_command
from dartree_tui.engines.replay import ReplayEngine
from dartree_tui.spool import Spool
from dartree_tui.store import Store
from dartree_tui.vocab import Vocab
from tests.tui.driving import fake_trace

PATIENCE = 30.0

ECHO = """
import json, sys
sys.stderr.write("first line\\nsecond line\\n"); sys.stderr.flush()
for line in sys.stdin:
    request = json.loads(line)
    if request["op"] == "shutdown":
        sys.exit(3)
    print(json.dumps({"kind": "Reply", "id": request["id"], "op": request["op"]},
                     separators=(",", ":")), flush=True)
"""


def collect(intake: Intake, done: Callable[[list[Record]], bool]) -> list[Record]:
    out: list[Record] = []
    deadline = time.monotonic() + PATIENCE
    while not done(out):
        out += [record for record, _ in intake.take(0.05)]
        assert time.monotonic() < deadline, out
        time.sleep(0.005)
    return out


def ended(records: list[Record]) -> bool:
    return any(isinstance(r, Lost) for r in records)


def lost(records: list[Record]) -> Lost:
    return next(r for r in records if isinstance(r, Lost))


def echo(tmp_path: Path, code: str = ECHO) -> ProcessEngine:
    return ProcessEngine([sys.executable, "-c", code], tmp_path / "logs" / "worker.log")


def test_the_default_is_the_worker_of_this_installation() -> None:
    assert default_command() == [sys.executable, "-m", "dartree_core", "worker"]
    engine = ProcessEngine("ssh 'my host' dartree worker")
    assert engine.command == ["ssh", "my host", "dartree", "worker"]
    assert engine.label == "ssh 'my host' dartree worker"


def test_requests_go_out_and_replies_come_back(tmp_path: Path) -> None:
    engine, intake = echo(tmp_path), Intake(None, {})
    engine.start(intake)
    engine.send(Load(id=5))
    engine.send(Pause(id=6))
    records = collect(intake, lambda r: len(r) == 2)
    assert records == [Reply(5, "load"), Reply(6, "pause")]
    engine.close()
    engine.close()
    assert engine.log.stat().st_mode & 0o777 == 0o600
    assert not list(intake.take(0.1)), "an end that was asked for is no loss"


def test_what_is_to_be_taken_soon_is_news() -> None:
    intake = Intake(None, {})
    recorder = Recorder(lambda token: TokenText(f" t{token}"))
    decoder = FakeDecoder()
    events = list(decoder.stream("explain", DecodeConfig(), session=decoder.session()))
    assert not intake.news
    for event in events:
        for line in recorder.lines(event).splitlines(keepends=True):
            intake.later(line)
        assert intake.news == isinstance(event, RunStarted | TurnStarted | TurnFinished)
        assert [type(record) for record, _ in intake.take(10)] == [type(event)]
        assert not intake.news
    intake.later(to_line(encode_reply(Reply(1, "load"))))
    assert intake.news
    list(intake.take(10))
    intake.end(Lost("It is gone."))
    assert intake.news


def test_what_there_was_no_time_for_is_news() -> None:
    intake = Intake(None, {})
    for _ in range(3):
        intake.later(to_line(encode(LoadProgress("weights", 1, 2, "files"))))
    assert not intake.news
    assert not list(intake.take(0.0))
    assert intake.news
    assert len(list(intake.take(10))) == 3
    assert not intake.news


def test_a_worker_that_dies_is_reported_with_its_last_words(tmp_path: Path) -> None:
    from dartree_core.worker_protocol import Shutdown

    engine, intake = echo(tmp_path), Intake(None, {})
    engine.start(intake)
    engine.send(Shutdown())
    end = lost(collect(intake, ended))
    assert "exit code 3" in end.message
    assert end.tail == ("first line", "second line")
    engine.close()


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_killed_worker_is_reported(tmp_path: Path) -> None:
    engine, intake = echo(tmp_path), Intake(None, {})
    engine.start(intake)
    assert engine._process is not None
    os.kill(engine._process.pid, signal.SIGKILL)
    assert "SIGKILL" in lost(collect(intake, ended)).message


@pytest.mark.skipif(os.name != "posix", reason="process groups")
def test_closing_kills_all_that_the_worker_started(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        'print(\'{"kind":"Reply","id":%d,"op":"x"}\' % child.pid, flush=True)\n'
        "time.sleep(600)\n"
    )
    engine, intake = echo(tmp_path, code), Intake(None, {})
    engine.start(intake)
    reply = collect(intake, lambda r: len(r) == 1)[0]
    assert isinstance(reply, Reply)
    assert isinstance(reply.id, int)
    began = time.monotonic()
    engine.close()
    assert time.monotonic() - began < 5
    deadline = time.monotonic() + PATIENCE
    while _alive(reply.id):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_command_that_does_not_exist_is_a_loss(tmp_path: Path) -> None:
    engine = ProcessEngine("/no/such/command worker", tmp_path / "worker.log")
    intake = Intake(None, {})
    engine.start(intake)
    engine.send(Load(id=1))
    assert "could not be started" in lost(collect(intake, ended)).message
    engine.close()


def test_a_worker_that_prints_something_else_is_a_loss(tmp_path: Path) -> None:
    engine, intake = echo(tmp_path, "print('hello')"), Intake(None, {})
    engine.start(intake)
    assert "not valid JSON" in lost(collect(intake, ended)).message
    engine.close()


def test_the_log_of_the_run_before_is_kept(tmp_path: Path) -> None:
    for said in ("one", "two"):
        engine = echo(tmp_path, f"import sys; sys.stderr.write('{said}')")
        intake = Intake(None, {})
        engine.start(intake)
        collect(intake, ended)
    assert engine.log.read_text() == "two"
    assert engine.log.with_name("worker.log.1").read_text() == "one"


@pytest.mark.parametrize("packed", [False, True])
def test_a_replay_delivers_a_trace(tmp_path: Path, packed: bool) -> None:
    path = fake_trace(tmp_path / "run.jsonl")
    if packed:
        zipped = tmp_path / "run.jsonl.gz"
        zipped.write_bytes(gzip.compress(path.read_bytes()))
        path = zipped
    engine = ReplayEngine(path)
    spool = engine.spool()
    words: dict[int, object] = {}
    intake = Intake(spool, words)  # type: ignore[arg-type]
    engine.start(intake)
    got: list[tuple[Record, int]] = []
    deadline = time.monotonic() + PATIENCE
    while not ended([r for r, _ in got]):
        got += intake.take(0.05)
        assert time.monotonic() < deadline
    assert isinstance(got[0][0], RunStarted)
    assert isinstance(got[-2][0], TurnFinished)
    assert lost([r for r, _ in got]).message == ""
    assert words
    for record, offset in got:
        if isinstance(record, RoundDone):
            assert spool.round(offset) == record
    assert (spool.path == path) != packed
    spool.close()
    assert path.exists()


def test_a_pipe_is_shown_while_it_grows(tmp_path: Path) -> None:
    lines = fake_trace(tmp_path / "run.jsonl").read_bytes().splitlines(keepends=True)
    receiver, sender = os.pipe()
    engine = ReplayEngine(os.fdopen(receiver, "rb"))
    spool = engine.spool()
    intake = Intake(spool, {})
    engine.start(intake)
    with os.fdopen(sender, "wb") as out:
        half = len(lines) // 2
        out.write(b"".join(lines[:half]))
        out.flush()
        first = collect(intake, lambda r: any(isinstance(x, RoundDone) for x in r))
        assert not ended(first)
        out.write(b"".join(lines[half:]))
    assert lost(collect(intake, ended)).message == ""
    spool.close()


def test_what_is_no_trace_is_refused_before_a_screen_opens(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="missing"):
        ReplayEngine(tmp_path / "missing.jsonl")
    other = tmp_path / "other.jsonl"
    other.write_text('{"kind":"Something"}\n')
    with pytest.raises(TraceError, match="not a run header"):
        ReplayEngine(other)
    later = tmp_path / "later.jsonl"
    later.write_text('{"kind":"RunStarted","schema":"9.0"}\n')
    with pytest.raises(TraceError, match=r"9\.0"):
        ReplayEngine(later)


def test_a_pipe_that_is_no_trace_is_reported() -> None:
    engine, intake = ReplayEngine(io.BytesIO(b"hello\n")), Intake(None, {})
    engine.start(intake)
    assert "not a trace" in lost(collect(intake, ended)).message


def test_a_damaged_trace_is_shown_up_to_the_damage(tmp_path: Path) -> None:
    path = fake_trace(tmp_path / "run.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:8], b"oops\n", *lines[8:]]))
    engine, intake = ReplayEngine(path), Intake(None, {})
    engine.start(intake)
    records = collect(intake, ended)
    assert any(isinstance(r, RoundDone) for r in records)
    assert "line 9" in lost(records).message


def test_a_trace_cut_in_its_last_line_is_whole_up_to_there(tmp_path: Path) -> None:
    path = fake_trace(tmp_path / "run.jsonl")
    path.write_bytes(path.read_bytes()[:-40])
    engine, intake = ReplayEngine(path), Intake(None, {})
    engine.start(intake)
    records = collect(intake, ended)
    assert lost(records).message == ""
    assert not any(isinstance(r, TurnFinished) for r in records)


def test_a_spool_is_a_trace_whatever_part_of_a_stream_it_holds(tmp_path: Path) -> None:
    """The second spool of a source names the tokens that only the first was told."""
    from dartree_core.trace import TraceReader

    path = fake_trace(tmp_path / "run.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    words: dict[int, object] = {}
    first, second = Spool(tmp_path / "a.jsonl"), Spool(tmp_path / "b.jsonl")
    intake = Intake(first, words)  # type: ignore[arg-type]
    for line in lines:
        intake.line(line)
    intake.redirect(second, words)  # type: ignore[arg-type]
    events = [line for line in lines if json.loads(line)["kind"] != "Vocab"]
    for line in events:
        intake.line(line)
    first.close()
    second.close()
    one, two = TraceReader(tmp_path / "a.jsonl"), TraceReader(tmp_path / "b.jsonl")
    assert list(one) == list(two)
    assert one.vocab == two.vocab
    assert (tmp_path / "b.jsonl").stat().st_mode & 0o777 == 0o600


def _staged_lines(tmp_path: Path) -> list[bytes]:
    path = fake_trace(tmp_path / "told.jsonl", stages=True)
    return path.read_bytes().splitlines(keepends=True)


def _kinds(records: list[Record]) -> list[str]:
    return [type(r).__name__ for r in records]


def test_stages_of_rounds_that_are_over_are_kept_but_not_read(tmp_path: Path) -> None:
    lines = _staged_lines(tmp_path)
    spool = Spool(tmp_path / "run.jsonl")
    intake = Intake(spool, {})
    for line in lines:
        intake.later(line)
    records = collect(intake, lambda out: not len(intake))
    assert "RoundDone" in _kinds(records)
    assert not {"BlockDrafted", "DepthExpanded", "TreePruned", "TreeVerified"} & set(
        _kinds(records)
    )
    spool.copy_to(tmp_path / "copy.jsonl")
    spool.close()
    with TraceReader(tmp_path / "told.jsonl") as told, TraceReader(tmp_path / "copy.jsonl") as kept:
        assert list(kept) == list(told)
        assert kept.vocab == told.vocab


def test_stages_of_the_round_under_way_are_read(tmp_path: Path) -> None:
    lines = _staged_lines(tmp_path)
    done = [i for i, line in enumerate(lines) if b'"RoundDone"' in line]
    intake = Intake(None, {})
    for line in lines[: done[1]]:
        intake.later(line)
    kinds = _kinds(collect(intake, lambda out: not len(intake)))
    assert kinds.index("RoundDone") < kinds.index("BlockDrafted")
    assert kinds[-1] == "TreeVerified"
    for line in lines[done[1] : done[1] + 2]:
        intake.later(line)
    kinds = _kinds(collect(intake, lambda out: not len(intake)))
    assert kinds[0] == "RoundDone"


def test_texts_reach_a_new_file_although_its_first_lines_stay_unread(tmp_path: Path) -> None:
    lines = _staged_lines(tmp_path)
    words: dict[int, TokenText] = {}
    intake = Intake(Spool(tmp_path / "one.jsonl"), words)
    for line in lines:
        intake.later(line)
    collect(intake, lambda out: not len(intake))
    spool = Spool(tmp_path / "two.jsonl")
    intake.redirect(spool, words)
    for line in lines:
        if b'"Vocab"' not in line:  # a worker tells a text once
            intake.later(line)
    collect(intake, lambda out: not len(intake))
    spool.copy_to(tmp_path / "copy.jsonl")
    spool.close()
    with TraceReader(tmp_path / "copy.jsonl") as kept:
        ids = {i for event in kept for i in token_ids(event)}
        assert ids
        assert ids <= set(kept.vocab)


def _poured(path: Path, spool: Spool | None, words: dict[int, TokenText]) -> tuple[Intake, Store]:
    """All lines of a trace in one heap, and a store that took them."""
    store = Store(Vocab(words), spool.round if spool else None)
    intake = Intake(spool, words)
    for line in path.read_bytes().splitlines(keepends=True):
        intake.later(line)
    while len(intake):
        for record, offset in intake.take(1.0):
            assert not isinstance(record, Reply | Lost)
            store.feed(record, offset)
    return intake, store


def test_rounds_in_a_heap_are_skimmed_and_read_when_looked_at(tmp_path: Path) -> None:
    path = fake_trace(tmp_path / "told.jsonl", stages=True)
    spool = Spool(tmp_path / "run.jsonl")
    _, store = _poured(path, spool, {})
    _, careful = _poured(path, None, {})
    assert len(store._recent) == 1, "all but the newest were to be skimmed"
    assert len(careful._recent) == len(careful.marks) > 3
    same = ("turn", "number", "accepted", "verified", "built", "span", "emitted", "drafted", "fate")
    for index, (ours, theirs) in enumerate(zip(store.marks, careful.marks, strict=True)):
        assert [getattr(ours, n) for n in same] == [getattr(theirs, n) for n in same]
        assert encode(store.round(index)) == encode(careful.round(index))
    assert store.heights == careful.heights
    for ours_, theirs_ in zip(store.turns, careful.turns, strict=True):
        assert ours_.text == theirs_.text
        assert ours_.pieces == theirs_.pieces
        assert ours_.metrics.summary() == theirs_.metrics.summary()
    spool.close()


def test_nothing_is_skimmed_that_could_not_be_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fake_trace(tmp_path / "told.jsonl")
    spool = Spool(tmp_path / "run.jsonl")
    monkeypatch.setattr(Spool, "keeps", False)
    _, store = _poured(path, spool, {})
    assert len(store._recent) == len(store.marks)
    spool.close()


@pytest.mark.parametrize(
    "change",
    [
        {"tree": None},
        {"tree": {"token": [1]}},
        {"tree": {"token": "abc", "depth": [0], "kept": [True]}},
        {"tree": {"token": [1, 2], "depth": [0], "kept": [True, True]}},
        {"tree": {"token": [], "depth": [], "kept": []}},
        {"tree": {"token": [1], "depth": [0], "kept": [None]}},
        {"tokens": 7},
    ],
    ids=str,
)
def test_damage_is_found_while_skimming_too(tmp_path: Path, change: dict[str, object]) -> None:
    lines = fake_trace(tmp_path / "told.jsonl").read_bytes().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if b'"RoundDone"' in line)
    lines[at] = to_line(json.loads(lines[at]) | change)
    spool = Spool(tmp_path / "run.jsonl")
    intake = Intake(spool, {})
    for line in lines:
        intake.later(line)
    records = collect(intake, lambda out: not len(intake))
    assert f"line {at + 1} is " in lost(records).message
    assert "RoundDone" not in _kinds(records)
    spool.close()


def test_news_rings() -> None:
    rung: list[bool] = []
    intake = Intake(None, {})
    intake.ring = lambda: rung.append(intake.news)
    intake.later(b'{"kind":"RoundDone"}\n')
    assert not rung
    intake.later(to_line(encode_reply(Reply(1, "load"))))
    intake.end(Lost("gone"))
    assert rung == [True, True]

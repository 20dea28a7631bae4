from __future__ import annotations

import gzip
import io
import json
import math
import os
import stat
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dartree_core.errors import ConfigError, TraceError
from dartree_core.events import (
    BlockDrafted,
    Calibrated,
    DepthExpanded,
    Event,
    PrefillDone,
    RoundDone,
    RunFailed,
    RunStarted,
    TreePruned,
    TreeVerified,
    TurnFinished,
    TurnStarted,
    encode,
)
from dartree_core.pieces import TokenText
from dartree_core.trace import (
    EventDecoder,
    Recorder,
    TraceIndex,
    TraceReader,
    TraceWriter,
    decode_vocab,
    encode_vocab,
    records,
    to_line,
    token_ids,
)
from dartree_core.trace.reader import loads
from tests.core.strategies import example_run, runs, token_text

SUFFIXES = pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz"])
shared_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(path: Path, events: list[Event]) -> Path:
    with TraceWriter(path, token_text) as writer:
        for event in events:
            writer.write(event)
    return path


def lines_of(events: list[Event]) -> list[bytes]:
    return [to_line(r) for r in records(events, token_text)]


def same(left: Event, right: Event) -> bool:
    return encode(left) == encode(right)


# Writing and reading


@SUFFIXES
@shared_folder
@given(runs())
def test_a_trace_gives_back_its_events(tmp_path: Path, suffix: str, events: list[Event]) -> None:
    path = write(tmp_path / f"run.{suffix}", events)
    with TraceReader(path) as reader:
        back = list(reader)
        assert not reader.cut
        assert list(map(encode, back)) == list(map(encode, events))
        assert reader.header == back[0]
        for token, text in reader.vocab.items():
            assert text == token_text(token)


@given(runs())
def test_every_id_is_told_before_its_first_event_and_once(events: list[Event]) -> None:
    stream = list(records(events, token_text))
    assert stream[0]["kind"] == "RunStarted"
    told: set[int] = set()
    by_record = iter(events)
    for i, record in enumerate(stream):
        if record["kind"] == "Vocab":
            new = set(decode_vocab(record))
            assert new
            assert not new & told
            told |= new
        else:
            event = next(by_record)
            if i > 0:
                assert set(token_ids(event)) <= told
    assert set(token_ids(events[0])) <= told


@given(runs())
def test_token_ids_finds_every_id_of_an_event(events: list[Event]) -> None:
    """Checked against the records: whatever a key that holds tokens says."""
    keys = {"token", "tokens", "token_ids", "prompt_ids", "first_token", "bonus", "choice"}

    def ids(value: Any, inside: bool) -> Iterator[int]:
        if isinstance(value, dict):
            for key, item in value.items():
                if key != "config":
                    yield from ids(item, key in keys)
        elif isinstance(value, list):
            for item in value:
                yield from ids(item, inside)
        elif inside and value is not None:
            yield value

    for event in events:
        assert set(token_ids(event)) == set(ids(encode(event), False))


def test_lines_are_compact_objects_with_the_kind_first(tmp_path: Path) -> None:
    data = write(tmp_path / "run.jsonl", example_run()).read_bytes()
    assert data.endswith(b"\n")
    for line in data.decode().split("\n")[:-1]:
        assert line.startswith('{"kind":"')
        assert line == json.dumps(json.loads(line), ensure_ascii=False, separators=(",", ":"))


def test_what_is_not_finite_is_null(tmp_path: Path) -> None:
    event = Calibrated("ar", math.inf, 1, 1.0)
    assert json.loads(to_line(encode(event)))["tokens_per_second"] is None
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_line({"x": math.nan})


def test_lone_surrogates_survive(tmp_path: Path) -> None:
    """A prompt typed in a broken locale reaches Python with them."""
    header = RunStarted(prompt="caf\udce9 \u2028 \x85 \r\n")
    path = write(tmp_path / "run.jsonl", [header])
    assert path.read_bytes().count(b"\n") == 1
    with TraceReader(path) as reader:
        assert reader.header.prompt == header.prompt


@given(runs())
def test_lines_of_a_recorder_are_its_records(events: list[Event]) -> None:
    def text(token: int) -> TokenText:
        return TokenText(f"\ud800{token}" if token % 7 == 0 else f" é{token}\n")

    quick, plain = Recorder(text), Recorder(text)
    for event in events:
        lines = quick.lines(event)
        assert lines.endswith(b"\n")
        found = [json.loads(line) for line in lines.splitlines()]
        assert found == [json.loads(to_line(record)) for record in plain.records(event)]


def test_what_other_programs_write_as_json_is_read() -> None:
    assert loads(b'{"a":"\\ud800"}\n') == {"a": "\ud800"}
    assert math.isnan(loads(b'{"a":NaN}')["a"])
    with pytest.raises(ValueError, match="Expecting"):
        loads(b'{"a":1')


@given(st.dictionaries(st.integers(0, 10**6), st.binary(max_size=6).map(TokenText.of_bytes)))
def test_vocab_records_keep_texts_and_torn_bytes_apart(tokens: dict[int, TokenText]) -> None:
    line = to_line(encode_vocab(tokens))
    assert decode_vocab(json.loads(line)) == tokens


@SUFFIXES
def test_files_are_private_even_when_they_existed(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"run.{suffix}"
    path.write_text("an older, longer file " * 1000)
    path.chmod(0o644)
    write(path, [RunStarted()])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with TraceReader(path) as reader:
        assert list(reader) == [RunStarted()]


def test_pipes_and_devices_keep_their_mode(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o644)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    write(pipe, [RunStarted()])
    reader.join()
    assert stat.S_IMODE(pipe.stat().st_mode) == 0o644
    assert got == [to_line(encode(RunStarted()))]


def test_a_trace_starts_with_its_header(tmp_path: Path) -> None:
    with (
        TraceWriter(tmp_path / "run.jsonl", token_text) as writer,
        pytest.raises(ValueError, match="starts with RunStarted"),
    ):
        writer.write(RunFailed("no"))


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        TraceWriter(tmp_path / "no" / "run.jsonl", token_text)
    if Path("/dev/full").exists():
        writer = TraceWriter("/dev/full", token_text)
        with pytest.raises(TraceError, match="No space left"):
            writer.write(RunStarted())


KILLED = """
import os, sys
from dartree_core.events import RunFailed, RunStarted
from dartree_core.trace import TraceWriter
writer = TraceWriter(sys.argv[1], lambda i: None)
writer.write(RunStarted(prompt="hello"))
writer.write(RunFailed("x" * 100_000))
os._exit(9)
"""


@SUFFIXES
def test_a_killed_process_leaves_every_line_it_wrote(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"run.{suffix}"
    assert subprocess.run([sys.executable, "-c", KILLED, str(path)]).returncode == 9
    with TraceReader(path) as reader:
        assert [type(e).__name__ for e in reader] == ["RunStarted", "RunFailed"]
        assert reader.cut == (suffix == "jsonl.gz")


# Damage


@given(runs(max_turns=1, max_rounds=2), st.data())
def test_cut_anywhere_all_whole_lines_are_read(events: list[Event], data: st.DataObject) -> None:
    lines = lines_of(events)
    whole = b"".join(lines)
    end = data.draw(st.integers(len(lines[0]), len(whole)))
    kept = whole[:end].count(b"\n")
    if kept < len(lines) and end == sum(map(len, lines[: kept + 1])) - 1:
        kept += 1  # only the line break is missing: the line is whole all the same
    expected = list(records(events, token_text))[:kept]
    with TraceReader(io.BytesIO(whole[:end])) as reader:
        back = list(map(encode, reader))
        assert back == [r for r in expected if r["kind"] != "Vocab"]
        assert reader.cut == (end > sum(map(len, lines[:kept])))
    with TraceIndex(io.BytesIO(whole[:end])) as index:
        assert index.cut == reader.cut
        rounds = [r for r in expected if r["kind"] == "RoundDone"]
        assert sum(map(len, index.turns)) == len(rounds)


@given(runs(max_turns=1, max_rounds=2), st.data())
def test_compressed_and_cut_anywhere(events: list[Event], data: st.DataObject) -> None:
    """Each line was flushed, so a cut loses only lines that were not wholly on disk."""
    buffer = io.BytesIO()
    ends = []
    lines = lines_of(events)
    with gzip.GzipFile(fileobj=buffer, mode="wb") as packed:
        for line in lines:
            packed.write(line)
            packed.flush()
            ends.append(buffer.tell())
    end = data.draw(st.integers(ends[0], buffer.tell()))
    on_disk = sum(e <= end for e in ends)
    stream = list(records(events, token_text))
    with TraceReader(io.BytesIO(buffer.getvalue()[:end])) as reader:
        back = list(map(encode, reader))
        told = [r for r in stream[:on_disk] if r["kind"] != "Vocab"]
        assert back[: len(told)] == told
        assert len(back) - len(told) <= 1
        assert reader.cut == (end < buffer.tell())


def test_joined_compressed_files_are_one(tmp_path: Path) -> None:
    lines = lines_of(example_run())
    path = tmp_path / "run.jsonl.gz"
    path.write_bytes(gzip.compress(lines[0]) + gzip.compress(b"".join(lines[1:])))
    with TraceReader(path) as reader:
        assert len(list(reader)) == len(example_run())
        assert not reader.cut


def test_a_large_compressed_line_is_read_whole(tmp_path: Path) -> None:
    """Beyond any chunk size, and so compressible that one chunk unpacks to megabytes."""
    header = RunStarted(prompt="a" * 3_000_000)
    path = write(tmp_path / "run.jsonl.gz", [header])
    with TraceReader(path) as reader:
        assert list(reader) == [header]


def header_line(**changes: Any) -> bytes:
    return to_line(encode(RunStarted()) | changes)


def round_line(change: Callable[[dict[str, Any]], None]) -> bytes:
    record = encode(next(e for e in example_run() if isinstance(e, RoundDone) and len(e.tree) > 1))
    change(record)
    return to_line(record)


def _forget_a_hit(record: dict[str, Any]) -> None:
    """Make a leaf pruned and accepted at once."""
    tree = record["tree"]
    leaf = next(i for i in range(1, len(tree["token"])) if i not in tree["parent"])
    tree["kept"][leaf], tree["state"][leaf] = False, "pruned"
    path = [leaf]
    while path[0] > 0:
        path.insert(0, tree["parent"][path[0]])
    record["accepted"] = path


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is empty"),
        (b"hello\n", "not a trace: its first line"),
        (b"\x00\xff\xfe\n", "not a trace"),
        (b"[1]\n", "not a trace"),
        (b'{"kind":"RoundDone"}\n', "not a trace"),
        (b'{"kind":"RunSta', "ends within its first line"),
        (header_line(schema="2.0"), "has schema version 2.0; this version of DARTree reads 1.x"),
        (header_line(schema="0.9"), "has schema version 0.9"),
        (header_line(schema=None), "line 1 is a header without a schema version"),
        (header_line(schema="new"), "line 1 is a header without a schema version"),
        (b"\x1f\x8b\x08nonsense", "damaged|invalid"),
    ],
)
@pytest.mark.parametrize("reader", [TraceReader, TraceIndex])
def test_what_is_no_trace_is_refused(
    data: bytes, says: str, reader: Callable[[io.BytesIO], Any]
) -> None:
    with pytest.raises(TraceError, match=says) as caught:
        reader(io.BytesIO(data))
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"{nonsense}\n", "line 2 is not valid JSON"),
        (b"\xff\n", "line 2 is not valid JSON"),
        (b"[" * 100_000 + b"\n", "line 2 is not valid JSON"),
        (b"17\n", "line 2 is not a JSON object"),
        (header_line(schema="2.0"), "has schema version 2.0"),
        (b'{"kind":"Vocab"}\n', "line 2 is unusable: a Vocab record has no tokens"),
        (b'{"kind":"Vocab","tokens":{"x":"y"}}\n', "line 2 is unusable: invalid literal"),
        (b'{"kind":"Vocab","tokens":{"1":{"hex":"e"}}}\n', "line 2 is unusable"),
        (b'{"kind":"Vocab","tokens":{"1":[7]}}\n', "neither text nor bytes"),
        (b'{"kind":"RoundDone"}\n', "line 2 is unusable: A RoundDone record is incomplete"),
        (round_line(lambda r: r.update(tree=5)), "line 2 is unusable"),
        (round_line(lambda r: r["tree"].pop("token")), "line 2 is unusable"),
        (round_line(lambda r: r["tree"]["token"].pop()), "line 2 .* column"),
        (round_line(lambda r: r["tree"]["parent"].__setitem__(1, 1)), "node 1 has parent 1"),
        (round_line(lambda r: r["tree"]["token"].__setitem__(0, "a")), "token has an unusable"),
        (round_line(lambda r: r["tree"]["state"].__setitem__(0, "lost")), "state has an unusable"),
        (round_line(lambda r: r["tree"]["select"].__setitem__(0, "a")), "select has an unusable"),
        (round_line(lambda r: r.update(accepted=[0, 99])), "not a path from the root"),
        (round_line(lambda r: r.update(accepted=[])), "not a path from the root"),
        (round_line(lambda r: r.update(provenance=[])), "provenances"),
        (round_line(lambda r: r.update(tokens=[99], provenance=["draft"])), "not those of the acc"),
        (round_line(lambda r: r["tree"]["kept"].__setitem__(0, False)), "not a verified root"),
        (round_line(_forget_a_hit), "an accepted node was never verified"),
        (round_line(lambda r: r.update(span=[1])), "span has an unusable value"),
        (round_line(lambda r: r.update(ms={"draft": "x"})), "ms has an unusable value"),
        (round_line(lambda r: r.update(ms={"\x1b[2J": 1.0})), "ms has an unusable value"),
        (round_line(lambda r: r.update(turn=True)), "turn has an unusable value"),
        (round_line(lambda r: r.update(bonus="x")), "bonus has an unusable value"),
    ],
)
def test_damage_is_named_by_its_line(line: bytes, says: str) -> None:
    reader = TraceReader(io.BytesIO(header_line() + line + to_line(encode(RunFailed("x")))))
    with pytest.raises(TraceError, match=says):
        list(reader)


def test_unknown_kinds_and_keys_of_a_newer_minor_version() -> None:
    lines = [
        header_line(schema="1.7", mood="good"),
        b'{"kind":"Weather","turn":0,"round":0,"rain":true}\n',
        b"{}\n",
        b"\n",
        to_line(encode(RunFailed("x")) | {"colour": 7}),
    ]
    reader = TraceReader(io.BytesIO(b"".join(lines)))
    assert list(reader) == [RunStarted(schema="1.7"), RunFailed("x")]
    assert TraceIndex(io.BytesIO(b"".join(lines))).turns == []


def test_a_stage_of_a_newer_minor_version_is_read() -> None:
    line = round_line(lambda r: r.update(ms={"draft": 1.0, "head_start": 2.0}))
    (done,) = list(TraceReader(io.BytesIO(header_line() + line)))[1:]
    assert isinstance(done, RoundDone)
    assert dict(done.ms) == {"draft": 1.0, "head_start": 2.0}


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    for reader in (TraceReader, TraceIndex):
        with pytest.raises(TraceError, match="No such file"):
            reader(tmp_path / "missing.jsonl")
        with pytest.raises(TraceError, match="Is a directory"):
            reader(tmp_path)


# Following a stream


def test_a_growing_stream_is_decoded_line_by_line() -> None:
    """Text or bytes; events before a header, as a worker sends them; each at once."""
    sent: list[bytes | str] = []

    def lines() -> Iterator[bytes | str]:
        for i, line in enumerate([to_line(encode(RunFailed("early"))), *lines_of(example_run())]):
            sent.append(line)
            yield line if i % 2 else line.decode()

    decoder = EventDecoder("worker")
    got = []
    for event in decoder.events(lines()):
        assert decoder.line == len(sent)
        got.append(event)
    assert list(map(encode, got)) == list(map(encode, [RunFailed("early"), *example_run()]))
    assert decoder.vocab[1] == token_text(1)


def test_an_unfinished_line_is_cut_only_at_the_end() -> None:
    decoder = EventDecoder()
    assert list(decoder.events([b'{"kind":'])) == []
    assert decoder.cut
    with pytest.raises(TraceError, match="line 1 is not valid JSON"):
        list(EventDecoder().events([b'{"kind":', header_line()]))


def test_a_compressed_pipe_is_read_as_it_comes() -> None:
    """Waiting for a full chunk would keep a live view dark."""
    read, write_end = os.pipe()
    packer = zlib.compressobj(wbits=31)
    with os.fdopen(read, "rb") as source, os.fdopen(write_end, "wb", buffering=0) as sink:
        sink.write(packer.compress(header_line()) + packer.flush(zlib.Z_SYNC_FLUSH))
        events = iter(TraceReader(source))
        assert isinstance(next(events), RunStarted)


# Random access


def expected_rounds(events: list[Event]) -> dict[tuple[int, int], list[Event]]:
    out: dict[tuple[int, int], list[Event]] = {}
    for event in events:
        if isinstance(event, BlockDrafted | DepthExpanded | TreePruned | TreeVerified | RoundDone):
            out.setdefault((event.turn, event.round), []).append(event)
    return out


@SUFFIXES
@shared_folder
@given(runs())
def test_any_round_of_any_turn(tmp_path: Path, suffix: str, events: list[Event]) -> None:
    path = write(tmp_path / f"run.{suffix}", events)
    wanted = expected_rounds(events)
    with TraceIndex(path) as index:
        assert {(t.turn, r) for t in index.turns for r in t.rounds} == set(wanted)
        assert same(index.header, events[0])
        assert set(index.vocab) == {i for e in events for i in token_ids(e)}
        for (turn, number), stages in reversed(wanted.items()):
            assert same(index.round(turn, number), stages[-1])
            assert list(map(encode, index.stages(turn, number))) == list(map(encode, stages))
            rest = events[next(i for i, e in enumerate(events) if e is stages[0]) :]
            assert list(map(encode, index.play(turn, number))) == list(map(encode, rest))
        for kind, get in (
            (TurnStarted, index.started),
            (PrefillDone, index.prefill),
            (TurnFinished, index.finished),
        ):
            for event in events:
                if isinstance(event, kind):
                    found = get(event.turn)
                    assert found is not None
                    assert same(found, event)


def test_lines_of_another_writer_are_indexed_too() -> None:
    """Keys in another order, blanks between them: nothing but slower."""
    events = example_run()
    loose = [json.dumps(dict(sorted(r.items()))) + "\n" for r in records(events, token_text)]
    ours = TraceIndex(io.BytesIO(b"".join(lines_of(events))))
    index = TraceIndex(io.BytesIO("".join(loose).encode()))
    assert [list(t.rounds) for t in index.turns] == [list(t.rounds) for t in ours.turns]
    assert index.vocab == ours.vocab
    assert same(index.round(1, 0), ours.round(1, 0))


def test_what_is_not_there_is_said() -> None:
    index = TraceIndex(io.BytesIO(b"".join(lines_of(example_run()))))
    last = index.turn(0).rounds[-1]
    with pytest.raises(ConfigError, match=f"no round 99 in turn 0, which has rounds 0 to {last}"):
        index.round(0, 99)
    with pytest.raises(ConfigError, match=r"no turn 7 .* Its turns: 0, 1"):
        index.round(7, 0)
    bare = TraceIndex(io.BytesIO(header_line()))
    with pytest.raises(ConfigError, match="Its turns: none"):
        bare.turn(0)


def test_a_growing_file_is_followed(tmp_path: Path) -> None:
    lines = lines_of(example_run())
    path = tmp_path / "run.jsonl"
    done = [i for i, line in enumerate(lines) if line.startswith(b'{"kind":"RoundDone"')]
    path.write_bytes(b"".join(lines[: done[0]]))
    with TraceIndex(path) as index, path.open("ab") as file:
        assert sum(map(len, index.turns)) == 0
        file.write(lines[done[0]][:20])
        file.flush()
        assert index.refresh() == 0
        assert index.cut
        file.write(lines[done[0]][20:])
        file.flush()
        assert index.refresh() == 1
        assert not index.cut
        assert isinstance(index.round(0, 0), RoundDone)
        file.write(b"".join(lines[done[0] + 1 :]))
        file.flush()
        assert index.refresh() == len(done) - 1
        assert index.finished(1) is not None


def test_a_file_that_shrank_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", example_run())
    with TraceIndex(path) as index:
        os.truncate(path, 100)
        with pytest.raises(TraceError, match="changed while it was open"):
            index.round(1, 0)
        assert list(index.play(1, 0)) == []


def test_several_runs_in_one_file() -> None:
    events = example_run()
    index = TraceIndex(io.BytesIO(b"".join(lines_of(events) + lines_of(events))))
    assert [(t.run, t.turn) for t in index.turns] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert index.turn(0) is index.turns[2]
    assert same(index.round(index.turns[0], 0), index.round(0, 0))


@pytest.mark.parametrize(
    ("order", "says"),
    [((0, 0, 0), "has round 0 after round 0"), ((1, 0, 0), "has round 0 after round 1")],
)
def test_rounds_out_of_order_are_damage(order: tuple[int, ...], says: str) -> None:
    lines = [round_line(lambda r, n=n: r.update(turn=0, round=n)) for n in order]  # type: ignore[misc]
    with pytest.raises(TraceError, match=says):
        TraceIndex(io.BytesIO(header_line() + b"".join(lines)))


def test_an_index_parses_no_round_it_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """And keeps a few numbers a round: what makes a trace of 5,000 rounds quick to open."""
    one = next(e for e in example_run() if isinstance(e, RoundDone) and len(e.tree) > 1)
    lines = [to_line(encode(one) | {"turn": 0, "round": n}) for n in range(5000)]
    data = io.BytesIO(header_line() + b"".join(lines))
    parsed = 0
    loads = orjson.loads

    def counting(*args: Any) -> Any:
        nonlocal parsed
        parsed += 1
        return loads(*args)

    monkeypatch.setattr(orjson, "loads", counting)
    index = TraceIndex(data)
    assert len(index.turn(0)) == 5000
    before = parsed
    assert before < 10
    assert index.round(0, 4321).round == 4321
    assert parsed == before + 1

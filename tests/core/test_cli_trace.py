"""`dartree trace`, from its command line to its output."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from dartree_core.cli.trace import trace
from dartree_core.errors import ConfigError, DARTreeError, TraceError
from dartree_core.events import Event, RoundDone, encode
from dartree_core.trace import TraceWriter, records, to_line
from tests.core.strategies import example_run, token_text
from tests.core.test_summary import summed

app = typer.Typer()
app.command()(trace)


def invoke(*words: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(app, list(words), input=stdin)


def printed(*words: str, stdin: bytes | None = None) -> str:
    result = invoke(*words, stdin=stdin)
    if result.exception is not None:
        raise result.exception
    return result.stdout_bytes.decode()


def error(*words: str, stdin: bytes | None = None) -> DARTreeError:
    caught = invoke(*words, stdin=stdin).exception
    assert isinstance(caught, DARTreeError), caught
    assert caught.remedy
    return caught


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "run.jsonl"
    with TraceWriter(path, token_text) as writer:
        for event in example_run():
            writer.write(event)
    return path


def rounds() -> list[RoundDone]:
    return [e for e in example_run() if isinstance(e, RoundDone)]


def test_summary(recorded: Path) -> None:
    text = printed(str(recorded))
    assert "target   target" in text
    assert "acceptance length" in text
    assert "worst rounds" in text
    assert "cut short" not in text
    assert "\x1b" not in text


def test_json_summary_is_one_object(recorded: Path) -> None:
    data = json.loads(printed(str(recorded), "--format", "json", "--worst", "1"))
    expected = summed(example_run(), worst=1, keep_rounds=True).to_dict()
    assert data == json.loads(json.dumps({**expected, "cut": False}))
    assert len(data["rounds"]) == len(rounds())
    assert len(data["worst_rounds"]) == 1


def test_csv_summary_has_a_row_for_every_round(recorded: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(printed(str(recorded), "--format", "csv"), newline="")))
    assert [(int(r["turn"]), int(r["round"])) for r in rows] == [
        (e.turn, e.round) for e in rounds()
    ]
    for row, done in zip(rows, rounds(), strict=True):
        assert int(row["emitted"]) == len(done.tokens)
        assert float(row["verify_ms"]) == done.ms["verify"]
        assert row["text"] == done.text_delta
        assert row["bonus"] == ("" if done.bonus is None else str(done.bonus))


def test_one_turn(recorded: Path) -> None:
    data = json.loads(printed(str(recorded), "--turn", "1", "--format", "json"))
    assert [t["turn"] for t in data["turns"]] == [1]
    rows = printed(str(recorded), "--turn", "1", "--format", "csv").splitlines()
    assert len(rows) == 1 + sum(e.turn == 1 for e in rounds())


@pytest.mark.parametrize("turn", [0, 1])
def test_one_round_three_ways(recorded: Path, turn: int) -> None:
    done = next(e for e in rounds() if e.turn == turn)
    words = (str(recorded), "--round", str(done.round), "--turn", str(turn))
    assert f"turn {turn}  round {done.round}  position {done.position}" in printed(*words)
    data = json.loads(printed(*words, "--format", "json"))
    vocab = data.pop("vocab")
    assert data == json.loads(json.dumps(encode(done)))
    assert set(map(int, vocab)) == {*done.tree.token, *done.tokens}
    rows = list(csv.DictReader(io.StringIO(printed(*words, "--format", "csv"), newline="")))
    assert [int(r["token"]) for r in rows] == list(done.tree.token)
    assert [r["state"] for r in rows] == list(done.tree.state)
    for row, token in zip(rows, done.tree.token, strict=True):
        text, raw = token_text(token)
        assert row["text"] == text
        assert row["bytes"] == ("" if raw is None else raw.hex())


def test_without_a_turn_the_first_one_is_meant(recorded: Path) -> None:
    assert printed(str(recorded), "-r", "0") == printed(str(recorded), "-r", "0", "-t", "0")


def test_without_a_turn_the_first_of_several_runs_is_meant(recorded: Path) -> None:
    data = recorded.read_bytes()
    later = data.replace(b'"position":', b'"position":9')
    words = ("-", "-r", "0", "--format", "json")
    assert printed(*words, stdin=data + later) == printed(*words, stdin=data)
    assert printed(*words, "-t", "0", stdin=data + later) == printed(*words, stdin=later)


def test_pruned_nodes_can_be_left_out(recorded: Path) -> None:
    done = next(e for e in rounds() if not all(e.tree.kept))
    words = (str(recorded), "-r", str(done.round), "-t", str(done.turn), "--verified")
    assert len(printed(*words, "--format", "csv").splitlines()) == 1 + sum(done.tree.kept)
    assert "not shown" in printed(*words)


def test_standard_input_and_compression_make_no_difference(recorded: Path) -> None:
    data = recorded.read_bytes()
    for words in ([], ["-r", "0"], ["--format", "csv"]):
        expected = printed(str(recorded), *words)
        assert printed("-", *words, stdin=data) == expected
        assert printed("-", *words, stdin=gzip.compress(data)) == expected


def test_a_cut_recording_is_read_and_said_to_be_cut(recorded: Path) -> None:
    data = recorded.read_bytes()[:-20]
    assert "The recording was cut short" in printed("-", stdin=data)
    assert "unfinished" in printed("-", stdin=data)
    assert json.loads(printed("-", "--format", "json", stdin=data))["cut"] is True


def test_before_damage_everything_is_shown(recorded: Path) -> None:
    lines = recorded.read_bytes().splitlines(keepends=True)
    result = invoke("-", stdin=b"".join([*lines[:-3], b"garbage\n", *lines[-3:]]))
    assert "acceptance length" in result.stdout
    assert isinstance(result.exception, TraceError)
    assert f"line {len(lines) - 2} is not valid JSON" in str(result.exception)


def test_faults_are_named(recorded: Path, tmp_path: Path) -> None:
    assert isinstance(error(str(recorded), "-r", "999"), ConfigError)
    assert "no turn 7" in str(error(str(recorded), "-r", "0", "-t", "7"))
    assert "no turn 7" in str(error(str(recorded), "-t", "7"))
    assert "no turn 7" in str(error(str(recorded), "-t", "7", "--format", "csv"))
    assert "No such file" in str(error(str(tmp_path / "missing")))
    assert "not a trace" in str(error("-", stdin=b"hello\n"))
    assert invoke(str(recorded), "-r", "-1").exit_code == 2


def test_standard_input_that_is_closed_holds_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(ConfigError, match="no trace on standard input"):
        trace("-")


def test_any_text_can_be_printed(tmp_path: Path) -> None:
    """Lone surrogates, as prompts from a broken locale have, stop neither format."""
    events: list[Event] = list(example_run())
    line = to_line({**encode(events[0]), "bundle": "\udce9"})
    data = line + b"".join(to_line(r) for r in list(records(events, token_text))[1:])
    assert "‹U+DCE9›" in printed("-", stdin=data)
    assert json.loads(printed("-", "--format", "json", stdin=data))["header"]["bundle"] == "\udce9"


def test_a_trace_without_rounds(tmp_path: Path) -> None:
    header = to_line(encode(example_run()[0]))
    assert "target" in printed("-", stdin=header)
    assert printed("-", "--format", "csv", stdin=header).startswith("turn,round,position")
    assert "no turn 0" in str(error("-", "-r", "0", stdin=header))

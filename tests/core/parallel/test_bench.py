"""A benchmark that two processes share is the benchmark one process makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dartree_core.bench.journal import Journal, part_of
from dartree_core.bench.records import Case, Sample
from tests.core.bench.test_cli_bench import MODELS, invoke
from tests.core.parallel.ranks import ranks

PROMPTS = 5


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("DARTREE_HOME", str(tmp_path / "home"))
    prompts = tmp_path / "ids.jsonl"
    rows = [{"prompt_ids": [5 + i, 17, 3, 29]} for i in range(PROMPTS)]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    # Budget auto depends on times, and then so does what is drafted, though not what is said.
    what = ["--methods", "dartree", "--budget", "8", "--temperature", "0,1", "-n", "12"]
    return [*MODELS, "--datasets", str(prompts), *what, "--format", "json", "--quiet"]


def said(journal: Path) -> dict[Any, list[list[int]]]:
    """Token ids by case."""
    _, *lines = journal.read_text().splitlines()
    cases = [Case.from_dict(json.loads(line)) for line in lines]
    return {c.key: [s.turns[0].token_ids for s in c.samples] for c in cases}


def untimed(report: dict[str, Any]) -> list[tuple[Any, ...]]:
    keys = ("variant", "dataset", "temperature", "prompts", "identical")
    return [tuple(row.get(key) for key in keys) for row in report["rows"]]


def test_two_processes_measure_what_one_does(tmp_path: Path, words: list[str]) -> None:
    single = invoke(*words, "--output", str(tmp_path / "one.json"))
    assert single.exit_code == 0, single.exception
    output = ["--output", str(tmp_path / "two.json")]
    with ranks("-m", "dartree_core", "bench", *words, *output) as both:
        (code, out, errors), (other, nothing, _) = both.finish()
    assert (code, other) == (0, 0), errors
    assert nothing == ""
    report = json.loads(out)
    assert report["environment"]["processes"] == 2
    assert untimed(report) == untimed(json.loads(single.stdout))
    assert said(tmp_path / "two.journal.jsonl") == said(tmp_path / "one.journal.jsonl")
    assert len(said(tmp_path / "two.journal.jsonl")) == 2 * PROMPTS
    assert not list(tmp_path.glob("*rank*"))


def test_what_lost_processes_measured_is_not_lost(tmp_path: Path) -> None:
    path, header = tmp_path / "run.journal.jsonl", {"what": "all"}
    cases = [Case("ids", f"r{i}", 0.0, [Sample("ar")]) for i in range(5)]
    first = Journal.start(path, header)
    first.add(cases[0])
    second = Journal.start(part_of(path, 1), header)
    for case in (cases[1], cases[2]):
        second.add(case)
    with second.path.open("a") as file:
        file.write('{"dataset": "ids", "row": "r3", "temp')  # killed in the middle of a line
    found = Journal.resume(path, header)
    assert [case.row for case in found.cases] == ["r0", "r1", "r2"]
    assert not found.parts()
    assert [case.row for case in Journal.resume(path, header).cases] == ["r0", "r1", "r2"]

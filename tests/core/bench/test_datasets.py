from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dartree_core.bench import hub_data
from dartree_core.bench.datasets import (
    NAMED,
    data_folders,
    load_dataset,
    load_datasets,
    read_rows,
    sample,
)
from dartree_core.bench.formats import BOXED
from dartree_core.errors import BundleError, ConfigError


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_built_in_prompts_are_24_of_three_kinds_and_a_few_show_all() -> None:
    found = load_dataset("builtin").rows
    assert Counter(row.data["category"] for row in found) == {"chat": 8, "code": 8, "maths": 8}
    assert len({row.id for row in found}) == 24
    assert {row.data["category"] for row in load_dataset("builtin", limit=3).rows} == {
        "chat",
        "code",
        "maths",
    }
    assert any(len(row.turns) == 2 for row in found)
    code = load_dataset("builtin-code").rows
    assert [row.data["category"] for row in code] == ["code"] * 8
    assert all(row.turns[0].endswith(BOXED) for row in load_dataset("builtin-maths").rows)


RAW: dict[str, tuple[dict[str, Any], tuple[str, ...], dict[str, Any]]] = {
    "gsm8k": (
        {"question": "How many?", "answer": "Two and two.\n#### 1,004"},
        ("How many?" + BOXED,),
        {"reference": "1004"},
    ),
    "math500": ({"problem": "x?", "answer": "\\pi"}, ("x?" + BOXED,), {"reference": "\\pi"}),
    "aime25": ({"problem": "n?", "answer": 70}, ("n?" + BOXED,), {"reference": "70"}),
    "humaneval": (
        {"task_id": "H/0", "prompt": "def f():\n", "test": "def check(c): ...", "entry_point": "f"},
        (
            "Write a solution to the following problem and make sure that it passes the tests:\n"
            "```python\ndef f():\n\n```",
        ),
        {"entry_point": "f", "question": "def f():\n"},
    ),
    "mbpp": (
        {"task_id": 11, "text": "Write f.", "test_list": ["assert f()"], "code": "..."},
        ("Write f.",),
        {"test_list": ["assert f()"]},
    ),
    "mt-bench": (
        {"question_id": 81, "category": "writing", "turns": ["One.", "Two."]},
        ("One.", "Two."),
        {"category": "writing"},
    ),
    "alpaca": (
        {"instruction": "Sort.", "input": "b a", "output": "a b"},
        ("Sort.\n\nInput:\nb a",),
        {},
    ),
    "livecodebench": (
        {"question_content": "Add.", "starter_code": "class S:"},
        (
            "You are an expert Python programmer. You will be given a question (problem "
            "specification) and will generate a correct Python program that matches the "
            "specification and passes all tests. You will NOT return anything except for the "
            "program\n\n### Question:\nAdd.\n\n### Format: Use the following code structure:\n"
            "```python\nclass S:\n```\n\n### Answer: (use the provided format with backticks)",
        ),
        {},
    ),
}


@pytest.mark.parametrize("name", RAW)
def test_rows_as_published_are_worded_as_in_the_papers(name: str, tmp_path: Path) -> None:
    raw, turns, data = RAW[name]
    write(tmp_path / f"{NAMED[name].files[-1]}.jsonl", raw)
    (row,) = load_dataset(name, folders=[tmp_path]).rows
    assert row.turns == turns
    assert {k: row.data[k] for k in data} == data


def test_rows_that_are_wrapped_already_stay_as_they_are(tmp_path: Path) -> None:
    row = {"id": "g-1", "prompt": "done", "template": "math_boxed", "question": "q", "answer": "1"}
    write(tmp_path / "gsm8k.jsonl", row, {"prompt": "plain"})
    found = load_dataset("gsm8k", folders=[tmp_path]).rows
    assert [r.turns for r in found] == [("done",), ("plain",)]
    assert found[0].id == "g-1"


def test_alpaca_without_input_and_livecodebench_without_starter(tmp_path: Path) -> None:
    write(tmp_path / "alpaca.jsonl", {"instruction": "Sort.", "input": ""})
    assert load_dataset("alpaca", folders=[tmp_path]).rows[0].turns == ("Sort.",)
    write(tmp_path / "livecodebench.jsonl", {"question_content": "Add.", "starter_code": ""})
    (text,) = load_dataset("livecodebench", folders=[tmp_path]).rows[0].turns
    assert "following format:\n```python\n# YOUR CODE HERE\n```" in text


def test_large_sets_are_cut_to_the_papers_rows(tmp_path: Path) -> None:
    raw = [{"id": i, "prompt": str(i), "template": "none"} for i in range(300)]
    path = write(tmp_path / "gsm8k.jsonl", *raw)
    order = np.random.default_rng(0).permutation(300)[:128]
    found = load_dataset("gsm8k", folders=[tmp_path]).rows
    assert [row.id for row in found] == [str(i) for i in order]
    assert [r.id for r in load_dataset("gsm8k", folders=[tmp_path], limit=5).rows] == [
        str(i) for i in order[:5]
    ]
    assert sample(read_rows(path, "gsm8k"), 300) == read_rows(path, "gsm8k")
    ready = write(tmp_path / "gsm8k_128.jsonl", *raw[:3])
    assert load_dataset("gsm8k", folders=[tmp_path]).source == ready.name


def test_any_file_by_path_and_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(
        tmp_path / "mine.jsonl",
        {"prompt": "a"},
        {"turns": ["b", "c"]},
        {"prompt_ids": [1, 2]},
        {"id": "3", "prompt": "d"},
    )
    rows = load_dataset(str(path)).rows
    assert [(r.id, r.turns, r.prompt_ids) for r in rows] == [
        ("0", ("a",), ()),
        ("1", ("b", "c"), ()),
        ("2", (), (1, 2)),
        ("3", ("d",), ()),
    ]
    monkeypatch.setenv("DARTREE_DATA", str(tmp_path))
    assert load_dataset("mine", folders=data_folders()).rows == rows
    (tmp_path / "bench").mkdir()
    write(tmp_path / "bench" / "deeper.jsonl", {"prompt": "e"})
    assert load_dataset("deeper", folders=data_folders()).source == "deeper.jsonl"


def test_several_data_sets_each_with_its_limit(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", *[{"prompt": str(i)} for i in range(5)])
    write(tmp_path / "b.jsonl", *[{"prompt": str(i)} for i in range(5)])
    found = load_datasets("a:2, b ,a:2", folders=[tmp_path], limit=4)
    assert [(d.name, len(d.rows)) for d in found] == [("a", 2), ("b", 4)]
    assert len(load_datasets("a:9", folders=[tmp_path])[0].rows) == 5
    with pytest.raises(ConfigError, match="same name"):
        load_datasets("a:1,a:2", folders=[tmp_path])


def test_ids_that_repeat_are_told_apart(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", {"id": 1, "prompt": "a"}, {"id": 1, "prompt": "b"})
    assert len({row.id for row in read_rows(path, "x")}) == 2


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("{", "line 2"),
        ("[1]", "row 2"),
        ('{"text": "a"}', "row 2"),
        ('{"prompt": ""}', "row 2"),
        ('{"turns": []}', "row 2"),
        ('{"turns": ["a", 3]}', "row 2"),
        ('{"prompt_ids": []}', "prompt_ids"),
        ('{"prompt_ids": [1.5]}', "prompt_ids"),
        ('{"prompt_ids": [true]}', "prompt_ids"),
    ],
)
def test_bad_rows_are_named(line: str, named: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"prompt": "fine"}\n' + line, encoding="utf-8")
    with pytest.raises(ConfigError, match=named) as caught:
        load_dataset(str(path))
    assert "x.jsonl" in caught.value.message


def test_missing_fields_missing_files_and_empty_files(tmp_path: Path) -> None:
    write(tmp_path / "alpaca.jsonl", {"input": "no instruction"})
    with pytest.raises(ConfigError, match="lacks 'instruction'"):
        load_dataset("alpaca", folders=[tmp_path])
    with pytest.raises(ConfigError, match="cannot be read"):
        load_dataset(str(tmp_path / "none.jsonl"))
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ConfigError, match="empty"):
        load_dataset("empty", folders=[tmp_path])
    with pytest.raises(ConfigError, match=r"'gsm9k'.*builtin, gsm8k"):
        load_dataset("gsm9k", folders=[tmp_path])
    with pytest.raises(ConfigError, match="does not exist"):
        data_folders([tmp_path / "no"])


def test_named_sets_come_from_the_hub_when_no_file_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raw").mkdir()
    write(tmp_path / "raw" / "question.jsonl", RAW["mt-bench"][0])
    write(tmp_path / "other.jsonl", {"turns": ["not this"]})
    asked: list[tuple[str, str]] = []

    def fetch(repo: str, *, repo_type: str, allow_patterns: list[str]) -> str:
        asked.append((repo, repo_type))
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    found = load_dataset("mt-bench")
    assert [row.turns for row in found.rows] == [("One.", "Two.")]
    assert asked == [(found.source, "dataset")]
    with pytest.raises(BundleError, match="no file"):
        load_dataset("math500")


def test_an_unreachable_hub_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> str:
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(BundleError, match=r"gsm8k.*no route") as caught:
        load_dataset("gsm8k")
    assert "--data-dir" in caught.value.remedy
    assert "builtin" in caught.value.remedy


def test_damaged_and_unreadable_hub_files_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(tmp_path))
    (tmp_path / "test.jsonl").write_text("{")
    with pytest.raises(BundleError, match="damaged"):
        hub_data.fetch_rows("math500", "a/b", ["test.jsonl"])
    (tmp_path / "test.parquet").write_bytes(b"PAR1")

    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(BundleError, match="pyarrow") as caught:
        hub_data.fetch_rows("gsm8k", "a/b", ["*.parquet"])
    assert "pip install pyarrow" in caught.value.remedy

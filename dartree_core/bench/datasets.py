"""Prompts to measure on: built in, by name from local files or a hub, or any JSON Lines file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dartree_core.bench.formats import wrap
from dartree_core.bench.records import Row
from dartree_core.errors import ConfigError

DATA_ENV = "DARTREE_DATA"
BUILTIN = "builtin"
CATEGORIES = ("chat", "code", "maths")
_BUILTIN_FILE = Path(__file__).with_name("prompts.jsonl")
_REMEDY = (
    'Give JSON Lines, each {"prompt": "..."}, {"turns": ["...", "..."]} or {"prompt_ids": [1, 2]}.'
)


@dataclass(frozen=True, slots=True)
class Named:
    """A data set of the papers.

    Attributes:
        files: Local file names (without suffix), best first: with the papers' own rows, or whole.
        count: Rows the papers run; a larger file is shuffled as theirs is and cut to that.
        repo: Data set repository on the Hugging Face hub.
        patterns: Files of it, as shell patterns.
    """

    files: tuple[str, ...]
    count: int
    repo: str
    patterns: tuple[str, ...]


NAMED: dict[str, Named] = {
    "gsm8k": Named(("gsm8k_128", "gsm8k"), 128, "openai/gsm8k", ("main/test-*.parquet",)),
    "math500": Named(
        ("math500_128", "math500", "math_500"), 128, "HuggingFaceH4/MATH-500", ("test.jsonl",)
    ),
    "aime24": Named(("aime24",), 30, "HuggingFaceH4/aime_2024", ("data/train-*.parquet",)),
    "aime25": Named(("aime25", "aime_2025"), 30, "MathArena/aime_2025", ("data/train-*.parquet",)),
    "humaneval": Named(
        ("humaneval", "HumanEval"), 164, "openai/openai_humaneval", ("*/test-*.parquet",)
    ),
    "mbpp": Named(
        ("mbpp_sanitized_test_128", "mbpp_sanitized_test", "mbpp_dartree_128", "mbpp_test", "mbpp"),
        128,
        "google-research-datasets/mbpp",
        ("sanitized/test-*.parquet",),
    ),
    "mt-bench": Named(
        ("mt_bench", "mt-bench"), 80, "HuggingFaceH4/mt_bench_prompts", ("raw/*.jsonl",)
    ),
    "alpaca": Named(
        ("alpaca_128", "alpaca", "alpaca_heldout_128", "alpaca_eval"),
        128,
        "tatsu-lab/alpaca",
        ("data/train-*.parquet",),
    ),
    "livecodebench": Named(
        ("livecodebench_128", "livecodebench"),
        128,
        "livecodebench/code_generation_lite",
        ("test*.jsonl",),
    ),
}


@dataclass(frozen=True, slots=True)
class Dataset:
    """Rows under a name.

    Attributes:
        name: As shown in reports.
        rows: In the order they are run.
        source: Where they came from: a file's name, or a repository.
    """

    name: str
    rows: Sequence[Row]
    source: str


def load_datasets(
    names: str, *, folders: Sequence[Path] = (), limit: int | None = None
) -> list[Dataset]:
    """Several data sets.

    Args:
        names: Commas between; a colon and a number after a name limits that one, as in
            `builtin,gsm8k:20`.
        folders: Where local files are looked for.
        limit: Most rows of each.

    Raises:
        ConfigError: None is named, two have the same name, or as `load_dataset`.
    """
    words = list(dict.fromkeys(word for part in names.split(",") if (word := part.strip())))
    if not words:
        raise ConfigError("No data set was named.", f"For example --datasets {BUILTIN}.")
    found = []
    for word in words:
        name, _, count = word.rpartition(":")
        own = int(count) if name and count.isdecimal() else None
        most = min((n for n in (own, limit) if n is not None), default=None)
        found.append(load_dataset(word if own is None else name, folders=folders, limit=most))
    if len({d.name for d in found}) < len(found):
        raise ConfigError("Two data sets have the same name.", "Rename one of the files.")
    return found


def load_dataset(name: str, *, folders: Sequence[Path] = (), limit: int | None = None) -> Dataset:
    """Find and read a data set.

    Args:
        name: `builtin`, `builtin-chat`, one of `NAMED`, the name of a `.jsonl` file in
            `folders`, or a path.
        folders: Where local files are looked for; their `bench` subfolders too.
        limit: Most rows, from the first on.

    Raises:
        ConfigError: There is none of that name, no row is wanted, or a row is no prompt (file and
            line are named).
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"Of data set {name}, {limit} prompts are wanted.", "Take at least 1.")
    if name == BUILTIN or name.removeprefix(f"{BUILTIN}-") in CATEGORIES:
        return _builtin(name, limit)
    path = Path(name).expanduser()
    if path.suffix in (".jsonl", ".json") or path.is_file():
        return Dataset(path.stem, _cut(read_rows(path, path.stem), limit), path.name)
    known = NAMED.get(name)
    found = _find(known.files if known else (name,), folders)
    if found is None and known is None:
        raise _unknown(name, folders)
    if found is not None:
        rows, source = read_rows(found, name), found.name
    else:
        assert known is not None
        from dartree_core.bench.hub_data import fetch_rows

        raw = fetch_rows(name, known.repo, known.patterns)
        rows = [_row(known.repo, i, name, data) for i, data in enumerate(raw, 1)]
        source = known.repo
    if known is not None:
        rows = sample(rows, known.count)
    return Dataset(name, _cut(rows, limit), source)


def data_folders(given: Sequence[Path] = ()) -> list[Path]:
    """Where named data sets are looked for: what was given, then `$DARTREE_DATA`.

    Raises:
        ConfigError: A given folder does not exist.
    """
    for folder in given:
        if not folder.is_dir():
            raise ConfigError(
                f"The data folder {folder} does not exist.", "Give a folder of .jsonl files."
            )
    own = [Path(p).expanduser() for p in os.environ.get(DATA_ENV, "").split(os.pathsep) if p]
    return [*given, *own]


def read_rows(path: Path, name: str) -> list[Row]:
    """Rows of a JSON Lines file, in order.

    Args:
        path: The file.
        name: Of the data set, which decides how raw rows are wrapped.

    Raises:
        ConfigError: The file cannot be read, or a line is no prompt.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The prompts {path} cannot be read ({error}).", _REMEDY) from error
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
        except ValueError as error:
            raise ConfigError(
                f"{path}, line {number}, is not valid JSON ({error}).", _REMEDY
            ) from error
        rows.append(_row(str(path), number, name, data))
    if not rows:
        raise ConfigError(f"The prompts {path} are empty.", _REMEDY)
    if len({row.id for row in rows}) < len(rows):
        rows = [Row(f"{i}:{r.id}", r.turns, r.prompt_ids, r.data) for i, r in enumerate(rows)]
    return rows


def sample(rows: Sequence[Row], count: int) -> list[Row]:
    """The papers' subset: `datasets`' `shuffle(seed=0)`, then the first `count`; a set that is no
    larger runs whole and in order."""
    if len(rows) <= count:
        return list(rows)
    import numpy as np

    order = np.random.default_rng(0).permutation(len(rows))
    return [rows[i] for i in order[:count]]


def _builtin(name: str, limit: int | None) -> Dataset:
    rows = read_rows(_BUILTIN_FILE, BUILTIN)
    category = name.removeprefix(BUILTIN).removeprefix("-")
    if category:
        rows = [row for row in rows if row.data["category"] == category]
    return Dataset(name, _cut(rows, limit), "shipped with dartree")


def _cut(rows: Sequence[Row], limit: int | None) -> Sequence[Row]:
    return rows if limit is None else rows[:limit]


def _find(stems: Sequence[str], folders: Sequence[Path]) -> Path | None:
    for stem in stems:
        for folder in folders:
            for place in (folder, folder / "bench"):
                path = place / f"{stem}.jsonl"
                if path.is_file():
                    return path
    return None


def _row(where: str, number: int, name: str, data: Any) -> Row:
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where}, row {number}, is no object.", _REMEDY)
    try:
        wrapped = wrap(name, data)
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"{where}, row {number}, lacks {error}, which {name} rows have.", _REMEDY
        ) from error
    own = {k: v for k, v in data.items() if k not in ("id", "prompt", "turns", "prompt_ids")}
    identity = str(data.get("id", data.get("task_id", data.get("question_id", number - 1))))
    ids = data.get("prompt_ids")
    if ids is not None:
        if not isinstance(ids, list) or not ids or not all(type(i) is int for i in ids):
            raise ConfigError(f"{where}, row {number}, has unusable prompt_ids.", _REMEDY)
        return Row(identity, (), tuple(ids), own)
    if wrapped is not None:
        turns: Any = wrapped.turns
        own = {**own, **wrapped.data}
    else:
        turns = data.get("turns") or [data.get("prompt")]
    if not isinstance(turns, list | tuple) or not all(isinstance(t, str) and t for t in turns):
        raise ConfigError(f"{where}, row {number}, holds no prompt.", _REMEDY)
    return Row(identity, tuple(turns), (), own)


def _unknown(name: str, folders: Sequence[Path]) -> ConfigError:
    looked = f" or in {', '.join(map(str, folders))}" if folders else ""
    return ConfigError(
        f"There is no data set {name!r} among the known ones{looked}.",
        f"Known: {BUILTIN}, {', '.join(NAMED)}; or give a .jsonl file, or a folder of them with "
        f"--data-dir or {DATA_ENV}.",
    )

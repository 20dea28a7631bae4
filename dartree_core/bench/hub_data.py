"""Data sets from a Hugging Face hub, in the hub's own cache."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from dartree_core.errors import BundleError, DARTreeError


def fetch_rows(name: str, repo: str, patterns: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of a data set repository, as published.

    Args:
        name: For messages.
        repo: `owner/name`.
        patterns: Which of its files, as shell patterns; read in the order of their names.

    Raises:
        BundleError: It cannot be reached, has no such file, or its files cannot be read here.
    """
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(repo, repo_type="dataset", allow_patterns=list(patterns)))
    # The hub's and the network's many exceptions all mean the same to the user.
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise BundleError(
            f"Data set {name} is not on this disk, and {repo} could not be fetched from the hub: "
            f"{reason.rstrip('.')}.",
            _elsewhere(name),
        ) from error
    names = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    paths = [folder / n for n in names if any(fnmatch(n, p) for p in patterns)]
    if not paths:
        raise BundleError(
            f"The repository {repo} has no file {' or '.join(patterns)}.", _elsewhere(name)
        )
    rows: list[dict[str, Any]] = []
    for path in paths:
        rows += _read(path, name)
    return rows


def _read(path: Path, name: str) -> list[dict[str, Any]]:
    try:
        if path.suffix == ".parquet":
            return _read_parquet(path, name)
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            found: list[dict[str, Any]] = json.loads(text)
            return found
        return [json.loads(line) for line in text.split("\n") if line.strip()]
    except DARTreeError:
        raise
    except (OSError, ValueError) as error:
        raise BundleError(
            f"{path.name} of data set {name} is damaged ({error}).", _elsewhere(name)
        ) from error


def _read_parquet(path: Path, name: str) -> list[dict[str, Any]]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise BundleError(
            f"Data set {name} is stored as Parquet, which needs the package pyarrow.",
            f"Run: pip install pyarrow. {_elsewhere(name)}",
        ) from error
    rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    return rows


def _elsewhere(name: str) -> str:
    return (
        f"Put {name}.jsonl into a folder and name it with --data-dir or DARTREE_DATA, or measure "
        "on the built-in prompts with --datasets builtin."
    )

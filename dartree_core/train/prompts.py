"""Prompt files: JSON Lines of `prompt` or `turns`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dartree_core.errors import ConfigError

_REMEDY = 'Give JSON Lines, each {"prompt": "..."} or {"turns": ["...", "..."]}.'


@dataclass(frozen=True, slots=True)
class PromptRow:
    """What a user says.

    Attributes:
        turns: The user's turns; the model's replies go between them.
        source: The file's name without its suffix.
    """

    turns: tuple[str, ...]
    source: str


def read_prompts(paths: Iterable[str | Path], *, limit: int | None = None) -> list[PromptRow]:
    """Rows of all files, in order.

    Args:
        paths: Files.
        limit: Most rows taken from each, from its start.

    Raises:
        ConfigError: A file is unreadable, or a line is no prompt (file and line are named).
    """
    rows: list[PromptRow] = []
    for path in map(Path, paths):
        try:
            # Not splitlines: strings in JSON may hold other line separators.
            lines = path.read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"The prompts {path} cannot be read ({error}).", _REMEDY) from error
        found = [_row(path, n, line) for n, line in enumerate(lines, 1) if line.strip()]
        if not found:
            raise ConfigError(f"The prompts {path} are empty.", _REMEDY)
        rows += found[:limit]
    return rows


def _row(path: Path, number: int, line: str) -> PromptRow:
    try:
        data = json.loads(line)
    except ValueError as error:
        raise ConfigError(
            f"{path}, line {number}, is not valid JSON ({error}).", _REMEDY
        ) from error
    turns = None
    if isinstance(data, dict):
        turns = data.get("turns") or [data.get("prompt")]
    if not _texts(turns):
        raise ConfigError(f"{path}, line {number}, holds no prompt.", _REMEDY)
    assert turns is not None
    return PromptRow(tuple(turns), path.stem)


def _texts(turns: Sequence[object] | None) -> bool:
    return isinstance(turns, list) and all(isinstance(t, str) and t.strip() for t in turns)

"""The learning curve on disk, one JSON object a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dartree_core.train.export import replace_text


class CurveLog:
    """Appends entries; a resumed run first drops those it will repeat.

    Args:
        path: The file.
        step: Steps already made; entries of later ones are dropped.
        writes: False in processes that do not write files.
    """

    def __init__(self, path: Path, step: int, *, writes: bool = True) -> None:
        self.path = path
        self._writes = writes
        if not writes:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [entry for entry in self.read(path) if int(entry["step"]) <= step]
        replace_text(path, "".join(json.dumps(entry) + "\n" for entry in kept))

    @staticmethod
    def read(path: Path) -> list[dict[str, Any]]:
        """Entries of a log, oldest first; a line cut by a kill ends it."""
        entries: list[dict[str, Any]] = []
        if not path.exists():
            return entries
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                entries.append(json.loads(line))
            except ValueError:
                break
        return entries

    def append(self, entry: dict[str, Any]) -> None:
        """Add an entry, on disk when this returns."""
        if not self._writes:
            return
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

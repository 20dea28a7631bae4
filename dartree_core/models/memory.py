"""Measurements that outlive a process: a small JSON file, best effort."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_MOST = 200
"""Entries kept; models that are tried once should not slow every later start."""


class Memory:
    """What was measured on this machine, by a key that says all it depends on.

    A file that is missing, damaged or read-only only costs the next start a measurement.

    Args:
        path: The file; None remembers nothing.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path

    def recall(self, key: str) -> Any | None:
        """What was remembered under `key`, or None."""
        return self._read().get(key)

    def remember(self, key: str, value: Any) -> None:
        """Keep a JSON-ready value for later processes; the oldest entries make room."""
        if self.path is None:
            return
        partial = self.path.with_suffix(".tmp")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            known = self._read()
            known.pop(key, None)
            known[key] = value
            text = json.dumps(dict(list(known.items())[-_MOST:]), indent=1)
            partial.write_text(text, encoding="utf-8")
            partial.replace(self.path)
        except OSError:
            return

    def _read(self) -> dict[str, Any]:
        if self.path is None:
            return {}
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

"""What was asked before, across sessions: written when it is sent, so a failure loses nothing."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

import platformdirs

LIMIT = 1000


def history_path() -> Path:
    """The history file."""
    return platformdirs.user_state_path("dartree") / "history.jsonl"


class History:
    """Past prompts with a cursor, and what one has made of them since the last question.

    Args:
        path: The file, one JSON string a line; None keeps nothing on disk.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._past: list[str] = []
        self._at = 0
        self._edits: dict[int, str] = {}
        if path is not None:
            with suppress(OSError, UnicodeDecodeError):
                for line in path.read_text(encoding="utf-8").splitlines()[-LIMIT:]:
                    with suppress(ValueError):
                        said = json.loads(line)
                        if isinstance(said, str):
                            self._past.append(said)
        self._at = len(self._past)

    def add(self, text: str) -> None:
        """Remember a prompt, once where it repeats the one before, and forget cursor and edits.

        A file that cannot be written is no reason to lose a question: memory still has it.
        """
        if not self._past or self._past[-1] != text:
            self._past.append(text)
            if self._path is not None:
                with suppress(OSError):
                    self._path.parent.mkdir(parents=True, exist_ok=True)
                    handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                    with os.fdopen(handle, "w", encoding="utf-8") as file:
                        file.write(json.dumps(text) + "\n")
        self._at = len(self._past)
        self._edits.clear()

    def back(self, current: str) -> str | None:
        """The prompt before, as it was left on the last visit. None at the start.

        Args:
            current: What stands in its place now; it is kept for coming back.
        """
        return self._walk(-1, current)

    def forward(self, current: str) -> str | None:
        """The prompt after; the draft at the end. None when already there."""
        return self._walk(1, current)

    def _walk(self, by: int, current: str) -> str | None:
        if not 0 <= self._at + by <= len(self._past):
            return None
        self._edits[self._at] = current
        self._at += by
        past = self._past[self._at] if self._at < len(self._past) else ""
        return self._edits.get(self._at, past)

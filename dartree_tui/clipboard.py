"""Copying text: the system's clipboard where there is one, else the terminal's (OSC 52)."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from textual.app import App

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})[^\n]*\n(.*?)(?:^ {0,3}\1[`~]*[ \t]*$|\Z)", re.M | re.S)


def copy(app: App[Any], text: str) -> None:
    """Put `text` on the clipboard.

    Over ssh the system's clipboard is at the far end, so the terminal is asked straight away.
    """
    if not (os.environ.get("SSH_CONNECTION") or os.environ.get("SSH_TTY")):
        import pyperclip

        try:
            pyperclip.copy(text)
        except pyperclip.PyperclipException:
            pass
        else:
            return
    app.copy_to_clipboard(text)


def code_blocks(markdown: str) -> list[str]:
    """Contents of the fenced code blocks, as they were written; an open one counts, too."""
    return [match[2] for match in _FENCE.finditer(markdown)]

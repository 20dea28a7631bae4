"""Running text from outside, free of what would steer the terminal."""

from __future__ import annotations

import re

_STEERING = re.compile("\r(?=\n)|[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def visible(text: str) -> str:
    """`text` with a picture for every control character but line breaks and tabs.

    One character stands for one, so that offsets hold. Widgets keep most controls and terminals
    obey them; see `dartree_core.glyphs` for tokens, where blanks and breaks are shown, too.
    """
    return _STEERING.sub(_picture, text)


def _picture(found: re.Match[str]) -> str:
    char = found[0]
    if char == "\r" and found.string.startswith("\n", found.end()):
        return " "  # a line break as some systems write it
    if char == "\x7f":
        return "␡"
    return chr(0x2400 + ord(char)) if char < " " else "�"

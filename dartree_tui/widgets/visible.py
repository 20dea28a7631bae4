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


def typeable(text: str) -> str:
    """`text` as it could have been typed: line breaks and tabs are its only control characters."""
    return _STEERING.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


_ON_ONE_LINE = str.maketrans("\n\t", "↵⇥")
_ON_LINES = str.maketrans("↵⇥", "\n\t")


def one_line(text: str) -> str:
    """`text` for a field of one line, with a picture for every control character."""
    return visible(text).translate(_ON_ONE_LINE)


def on_lines(text: str) -> str:
    """What `one_line` showed, after someone has changed it: line breaks and tabs are meant."""
    return text.translate(_ON_LINES)


def _picture(found: re.Match[str]) -> str:
    char = found[0]
    if char == "\r" and found.string.startswith("\n", found.end()):
        return " "  # a line break as some systems write it
    if char == "\x7f":
        return "␡"
    return chr(0x2400 + ord(char)) if char < " " else "�"

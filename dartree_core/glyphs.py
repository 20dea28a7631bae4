"""What a token looks like in a terminal: every character visible, every width known.

A token is a piece of text or of bytes, often with blanks, control characters or half an emoji in
it. Shown raw it would move the cursor, vanish, or shift every cell to its right; here it becomes
a string of printable characters whose width `rich.cells` measures the way terminals do.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from types import MappingProxyType

from rich.cells import cell_len, set_cell_size

from dartree_core.tree import BonusFate, State

STATE_GLYPHS: MappingProxyType[State, str] = MappingProxyType(
    {"hit": "●", "walked_past": "○", "unreached": "·", "pruned": "×"}
)
"""One cell per node state: shape carries the meaning, colour only repeats it."""

STATE_GLYPHS_ASCII: MappingProxyType[State, str] = MappingProxyType(
    {"hit": "#", "walked_past": "o", "unreached": ".", "pruned": "x"}
)
"""The same for terminals without UTF-8."""

FATE_WORDS: MappingProxyType[BonusFate, str] = MappingProxyType(
    {
        "not_proposed": "it was not among the candidates for its place",
        "level_pruned": "it was a candidate, but others scored better at its depth",
        "final_pruned": "it was in the supertree, but pruned before verification",
        "not_expanded": "the tree did not go on below its parent",
    }
)
"""Why a round's tree lacked its bonus token, to follow "the tree lacked it:"."""

STATE_WORDS: MappingProxyType[State, str] = MappingProxyType(
    {
        "hit": "hit",
        "walked_past": "walked past",
        "unreached": "unreached",
        "pruned": "pruned",
    }
)

ELLIPSIS = "…"

_NAMED = {"\n": "↵", "\t": "⇥", "\x7f": "␡"}
_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"))
_MARKS = frozenset(("Mn", "Me", "Mc"))
_STRAY_BYTES = re.compile("[\udc80-\udcff]+")


def _hex_bytes(stray: str) -> str:
    return "‹" + " ".join(f"{ord(c) - 0xDC00:02X}" for c in stray) + "›"


def _visible(char: str, after_base: bool) -> str:
    """`char`, or what stands for it; `after_base`: a combining mark has something to sit on."""
    code = ord(char)
    if char in _NAMED:
        return _NAMED[char]
    if code < 0x20:
        return chr(0x2400 + code)
    category = unicodedata.category(char)
    # Terminals disagree about the width of emoji with variation selectors, so those are spelled.
    selector = 0xFE00 <= code <= 0xFE0F or 0xE0100 <= code <= 0xE01EF
    if category in _HIDDEN or selector:
        return f"‹U+{code:04X}›"
    if cell_len(char) == 0:
        if category not in _MARKS:
            return f"‹U+{code:04X}›"
        return char if after_base else "◌" + char
    return char


@lru_cache(maxsize=1 << 14)
def show_token(text: str, raw: bytes | None = None) -> str:
    """A token's text with nothing invisible in it.

    Blanks become `␣`, newlines `↵`, tabs `⇥`, other control characters their control pictures,
    characters without width or meaning in a terminal `‹U+200D›`, bytes that are no UTF-8 on
    their own `‹E2 80›`, a lone combining mark sits on `◌`, and an empty token is `‹›`.

    Args:
        text: The token's text.
        raw: Its bytes, for a token that is not valid UTF-8 by itself; `text` is then ignored.
    """
    if raw is None:
        return _show(text) or "‹›"
    text = raw.decode("utf-8", "surrogateescape")
    out: list[str] = []
    position = 0
    for stray in _STRAY_BYTES.finditer(text):
        out.append(_show(text[position : stray.start()]))
        out.append(_hex_bytes(stray[0]))
        position = stray.end()
    out.append(_show(text[position:]))
    return "".join(out) or "‹›"


def show_text(text: str) -> str:
    """Running text on one line: as `show_token`, but with blanks left as they are."""
    return _show(text, blank=" ")


def _show(text: str, blank: str = "␣") -> str:
    out: list[str] = []
    base = False
    for char in text:
        shown = blank if char == " " else _visible(char, base)
        base = shown[-1] == char != " "
        out.append(shown)
    return "".join(out)


def fit(text: str, cells: int) -> str:
    """`text` padded with blanks, or cut with an ellipsis, to exactly `cells` terminal cells.

    Never splits a wide character: a cut that would is padded by a blank. Meant for text out of
    `show_token`; other text must be free of control characters.
    """
    if cells <= 0:
        return ""
    width = cell_len(text)
    if width <= cells:
        return text + " " * (cells - width)
    return set_cell_size(text, cells - 1) + ELLIPSIS

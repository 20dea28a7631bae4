from __future__ import annotations

import unicodedata
from typing import get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from dartree_core.glyphs import (
    FATE_WORDS,
    STATE_GLYPHS,
    STATE_GLYPHS_ASCII,
    STATE_WORDS,
    fit,
    show_text,
    show_token,
)
from dartree_core.tree import BonusFate, State

anything = st.text(st.characters(codec=None), max_size=12)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (" the", "␣the"),
        ("\n\n\t", "↵↵⇥"),
        ("", "‹›"),
        ("\r\x00\x1b[31m\x7f", "␍␀␛[31m␡"),
        ("\x85\u00a0\u3000\u2028", "‹U+0085›‹U+00A0›‹U+3000›‹U+2028›"),
        ("e\u0301", "e\u0301"),
        ("\u0301x", "◌\u0301x"),
        (" \u0301", "␣◌\u0301"),
        ("👨\u200d👩", "👨‹U+200D›👩"),
        ("❤\ufe0f", "❤‹U+FE0F›"),
        ("\u202eevil", "‹U+202E›evil"),
        ("\ud800", "‹U+D800›"),
        ("日本", "日本"),
        ("\ufffd", "\ufffd"),
    ],
)
def test_shown(text: str, shown: str) -> None:
    assert show_token(text) == shown


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"\xe2\x80", "‹E2 80›"),
        (b"\x98\x80 a\n\xff", "‹98 80›␣a↵‹FF›"),
        (b"\xff\xcc\x81", "‹FF›◌\u0301"),
        (b" \xf0\x9f", "␣‹F0 9F›"),
    ],
)
def test_torn_bytes(raw: bytes, shown: str) -> None:
    assert show_token("ignored", raw) == shown


@given(anything)
@example("\U0001f3fb")
@example("\u0301")
def test_nothing_shown_is_invisible_or_moves_the_cursor(text: str) -> None:
    shown = show_token(text)
    assert shown
    assert cell_len(shown) > 0
    shown.encode("utf-8")
    for i, char in enumerate(shown):
        category = unicodedata.category(char)
        assert category[0] not in "CZ", hex(ord(char))
        if cell_len(char) == 0:
            assert category[0] == "M"
            assert i > 0


@given(st.binary(max_size=10))
@example(b"")
def test_all_bytes_are_accounted_for(raw: bytes) -> None:
    shown = show_token("", raw)
    try:
        assert shown == show_token(raw.decode())
    except UnicodeDecodeError:
        strays = [c for c in raw.decode("utf-8", "surrogateescape") if "\udc80" <= c <= "\udcff"]
        for stray in strays:
            assert f"{ord(stray) - 0xDC00:02X}" in shown


def test_running_text_keeps_its_blanks() -> None:
    assert show_text("two words\n\x1b[2J\u200b") == "two words↵␛[2J‹U+200B›"


@given(anything.map(show_token), st.integers(-3, 30))
@example("日本語", 4)
@example("日本語", 1)
def test_fit_is_exact(text: str, cells: int) -> None:
    out = fit(text, cells)
    assert cell_len(out) == max(0, cells)
    if cell_len(text) <= cells:
        assert out.rstrip(" ") == text.rstrip(" ")
    elif cells > 0:
        assert out.endswith("…")
        assert text.startswith(out[:-1].rstrip(" "))


@given(st.lists(anything.map(show_token), max_size=4))
def test_widths_add_up_when_cells_stand_side_by_side(tokens: list[str]) -> None:
    assert cell_len("".join(fit(t, 6) for t in tokens)) == 6 * len(tokens)


def test_every_state_has_its_own_glyph_of_one_cell() -> None:
    for glyphs in (STATE_GLYPHS, STATE_GLYPHS_ASCII):
        assert set(glyphs) == set(get_args(State)) == set(STATE_WORDS)
        assert len(set(glyphs.values())) == len(glyphs)
        assert all(cell_len(g) == 1 for g in glyphs.values())
    assert set(FATE_WORDS) == set(get_args(BonusFate))
    assert all(g.isascii() for g in STATE_GLYPHS_ASCII.values())

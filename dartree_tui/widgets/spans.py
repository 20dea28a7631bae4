"""Styled pieces of a line, before they become a strip."""

from __future__ import annotations

from typing import TypeAlias

from rich.style import Style

Spans: TypeAlias = list[tuple[str, Style]]
"""Pieces of a line; widths add up to the line's."""


def joined(spans: Spans) -> Spans:
    """Spans with neighbours of one style merged, and blanks that nothing marks merged with any.

    Fewer segments are the difference between a redraw that is felt and one that is not.
    """
    out: Spans = []
    text, style = "", Style.null()
    for piece, ink in spans:
        if not text:
            text, style = piece, ink
        elif ink is style or (piece.isspace() and not _marks_blanks(ink, style)):
            text += piece
        else:
            out.append((text, style))
            text, style = piece, ink
    if text:
        out.append((text, style))
    return out


def _marks_blanks(*styles: Style) -> bool:
    """True where a style shows on blanks as well."""
    return any(s.bgcolor is not None or s.reverse or s.underline for s in styles)

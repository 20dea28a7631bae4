"""The theme's colours as ready-made styles, for widgets that paint their own lines.

Every style has a foreground, so that a segment never goes out unstyled (Textual's monochrome
filter fails on those). Nothing here is the only carrier of a meaning: glyphs and words say it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from rich.style import Style
from textual.color import Color, ColorParseError

from dartree_tui.theme_file import SCORE_STEPS, TABLES, variable
from dartree_tui.themes import variable_defaults

if TYPE_CHECKING:
    from textual.app import App

BARS = "▁▂▃▄▅▆▇█"
"""One eighth to eight eighths of a cell."""


@dataclass(frozen=True, slots=True)
class Palette:
    """Styles by meaning. Those of `select` set a background and are added to another style.

    Attributes:
        text, dim, accent, warning: Body text, secondary text, emphasis, something to look at.
        state: By node state, with `candidate` for a node not yet judged and `bonus`.
        provenance: By origin of a token: `prefill`, `draft`, `bonus`.
        stage: By stage of a round.
        score: `SCORE_STEPS` styles from unlikely to certain.
        cursor, path, children: The selected node, the path to it, and its children.
    """

    text: Style
    dim: Style
    accent: Style
    warning: Style
    state: Mapping[str, Style]
    provenance: Mapping[str, Style]
    stage: Mapping[str, Style]
    score: tuple[Style, ...]
    cursor: Style
    path: Style
    children: Style

    @classmethod
    def of(cls, app: App[Any]) -> Palette:
        """The palette of the app's current theme; the same object while colours do not change."""
        found = app.theme_variables
        return _resolve(app.current_theme.dark, tuple(found.get(name) for name in _NAMES))


def score_step(p: float) -> int:
    """Step of the ramp, and of `BARS`, for a probability: 0 below 1/8, 7 from 7/8 on."""
    return min(SCORE_STEPS - 1, max(0, int(p * SCORE_STEPS))) if p == p else 0


_PLAIN = ("foreground", "dim", "accent", "warning")
_GROUPS = ("state", "provenance", "stage", "select")
_NAMES = (
    *_PLAIN,
    *(variable(group, key) for group in _GROUPS for key in TABLES[group]),
    *(f"score-{i}" for i in range(SCORE_STEPS)),
)


@lru_cache(maxsize=16)
def _resolve(dark: bool, values: tuple[str | None, ...]) -> Palette:
    given = dict(zip(_NAMES, values, strict=True))
    defaults = variable_defaults(dark)

    def colour(name: str) -> Color:
        for text in (given[name], defaults.get(name)):
            try:
                if text is not None:
                    return Color.parse(text)
            except ColorParseError:
                continue  # "auto 60%" and the like: CSS understands it, a cell does not
        return Color.parse("#dddddd" if dark else "#222222")

    def ink(name: str) -> Style:
        return Style(color=colour(name).rich_color)

    def paper(name: str) -> Style:
        return Style(bgcolor=colour(name).rich_color)

    def group(name: str) -> dict[str, Style]:
        return {key: ink(variable(name, key)) for key in TABLES[name]}

    state = group("state")
    state["hit"] += Style(bold=True)
    state["bonus"] += Style(bold=True)
    return Palette(
        text=ink("foreground"),
        dim=ink("dim"),
        accent=ink("accent"),
        warning=ink("warning"),
        state=state,
        provenance=group("provenance"),
        stage=group("stage"),
        score=tuple(ink(f"score-{i}") for i in range(SCORE_STEPS)),
        # Reversed rather than coloured: it survives terminals and settings without colour.
        cursor=ink("select-cursor") + Style(reverse=True, bold=True),
        path=paper("select-path"),
        children=paper("select-children"),
    )

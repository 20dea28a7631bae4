"""The line that says what the glyphs mean, with how many nodes bear each."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.cells import cell_len

from dartree_tui.palette import BARS, Palette
from dartree_tui.widgets.rounds import GLYPHS, WORDS, NodeState, RoundView
from dartree_tui.widgets.spans import Spans


def legend(
    view: RoundView,
    width: int,
    palette: Palette,
    bright: Collection[NodeState] | None = None,
    digits: bool = False,
) -> Spans:
    """The longest legend that fits into `width` cells.

    States come first, then what bar and digit mean; states without a node are left out, except
    that a judged tree always explains `hit` and `walked past`. States outside `bright`, if given,
    are dimmed by a filter and marked as such. With `digits` it also says what
    the digit in a cell is.
    """
    counts = {
        state: n
        for state, n in view.counts().items()
        if n or (view.phase == "done" and state in ("hit", "walked_past"))
    }
    short: list[Spans] = []
    words: list[Spans] = []
    for state, n in counts.items():
        shown = bright is None or state in bright
        ink = palette.state[state if shown else "pruned"]
        count = f"{n}  " if shown else f"({n})  "
        short.append([(GLYPHS[state], ink), (f" {count}", palette.dim)])
        words.append([(GLYPHS[state], ink), (f" {WORDS[state]} {count}", palette.dim)])
    bonus: Spans = []
    if view.bonus is not None:
        bonus = [(GLYPHS["bonus"], palette.state["bonus"]), (" bonus  ", palette.dim)]
    score: Spans = [(bar, palette.score[i]) for i, bar in enumerate(BARS)]
    explain: Spans = [(" head's probability  ", palette.dim)]
    digit: Spans = [("0 parent's row", palette.dim)] if digits else []
    if digits and len(view.columns) <= len(view.guesses):
        explain = [(" probability  ", palette.dim)]
        digit = [("without glyph: the drafter's guess, blind to the path", palette.dim)]
    for parts in (
        [*words, bonus, score, explain, digit],
        [*words, bonus, score, explain],
        [*words, bonus],
        words,
        [*short, bonus],
        short,
    ):
        spans = _joined(parts)
        if sum(cell_len(text) for text, _ in spans) <= width:
            break
    return spans


def _joined(parts: Sequence[Spans]) -> Spans:
    lead: Spans = []
    return sum(parts, lead)

"""The tree as an indented outline: one line a node, children under their parent."""

from __future__ import annotations

from rich.cells import cell_len
from rich.style import Style
from textual.geometry import Region, Size

from dartree_core.glyphs import fit
from dartree_tui.palette import BARS, Palette, score_step
from dartree_tui.widgets.figures import prob, signed
from dartree_tui.widgets.legend import legend
from dartree_tui.widgets.rounds import BONUS, GLYPHS, RoundView, probability
from dartree_tui.widgets.spans import Spans
from dartree_tui.widgets.tree_view import Band, Move, TreeView

_NUMBER = 8
_LEAD = 4
"""Cells of glyph and score before a token."""


def preorder(view: RoundView) -> list[int]:
    """Node ids with every node before its descendants, and `BONUS` under the node it follows."""
    order: list[int] = []
    stack = [0]
    while stack:
        node = stack.pop()
        order.append(node)
        if node == BONUS:
            continue
        stack.extend(reversed(view.children[node]))
        if node == view.accepted[-1] and view.bonus is not None:
            stack.append(BONUS)
    return order


class TreeOutline(TreeView):
    """Indented tree of one round; the same interface, keys and messages as `TreeGrid`.

    j and k move along the lines, home and end to the first and last one.
    """

    _order: tuple[int, ...] = ()
    _guides: tuple[str, ...] = ()
    _place: dict[int, int]  # node to line

    def measure(self, size: Size) -> Size:
        """See `TreeView.measure`; also settles the order of lines."""
        view = self.shown
        assert view is not None
        order = preorder(view)
        self._order = tuple(order)
        self._place = {node: line for line, node in enumerate(order)}
        self._guides = tuple(_guides(view, order))
        widest = max(
            cell_len(guide) + _LEAD + cell_len(self._text(view, node))
            for guide, node in zip(self._guides, order, strict=True)
        )
        head, foot = self.bands(size)
        numbers = self._numbers(size.width)
        return Size(widest + numbers * _NUMBER, head + len(order) + foot)

    def bands(self, size: Size) -> tuple[int, int]:
        """Headings on top, the legend below where there is room for it."""
        return 1, int(size.height >= 8)

    @staticmethod
    def _numbers(width: int) -> int:
        """How many columns of numbers fit beside the tokens."""
        return 3 if width >= 72 else 2 if width >= 56 else 1 if width >= 36 else 0

    @staticmethod
    def _text(view: RoundView, node: int) -> str:
        return (view.bonus or "") if node == BONUS else view.text[node]

    def draw(self, band: Band, row: int, palette: Palette) -> Spans:
        """See `TreeView.draw`."""
        view = self.shown
        assert view is not None
        width = self.virtual_size.width
        numbers = self._numbers(self.scrollable_content_region.width)
        if band == "foot":
            return legend(view, self.scrollable_content_region.width, palette, self.bright)
        if band == "head":
            titles = "".join(f"{t:>{_NUMBER}}" for t in ("head", "path", "target")[:numbers])
            return [(fit(" tree", width - len(titles)) + titles, palette.dim)]
        if row >= len(self._order):
            return []
        node = self._order[row]
        room = width - numbers * _NUMBER
        spans: Spans = [(self._guides[row], palette.dim)]
        spans += self._entry(view, node, palette)
        used = sum(cell_len(text) for text, _ in spans)
        spans.append((" " * max(0, room - used), palette.dim))
        return [*spans, *self._figures(view, node, numbers, palette)]

    def _entry(self, view: RoundView, node: int, palette: Palette) -> Spans:
        if node == BONUS:
            style = palette.state["bonus"]
            if self.node == BONUS:
                style += palette.cursor
            return [(f"{GLYPHS['bonus']}   {view.bonus}", style)]
        state = view.state[node]
        ink = palette.state[state]
        step = score_step(view.p[node])
        score = palette.score[step]
        words = ink if state in ("hit", "pruned") else score
        if not self.lit(node):
            ink = score = words = palette.state["pruned"]
        spans = [
            (f"{GLYPHS[state]} ", ink),
            (f"{BARS[step]} " if node else "", score),
            (view.text[node], words),
        ]
        marked: Style | None = self.emphasis(node, palette)
        return spans if marked is None else [(text, style + marked) for text, style in spans]

    def _figures(self, view: RoundView, node: int, numbers: int, palette: Palette) -> Spans:
        if node <= 0:
            return [(" " * (numbers * _NUMBER), palette.dim)]
        target = view.tree.target_logp
        values = (
            prob(view.p[node]),
            signed(view.tree.path_logp[node]),
            prob(probability(target[node])) if target is not None else "",
        )
        return [(f"{value:>{_NUMBER}}", palette.dim) for value in values[:numbers]]

    def region_of(self, node: int) -> Region | None:
        """See `TreeView.region_of`."""
        line = self._place.get(node)
        if line is None or self.shown is None:
            return None
        left = cell_len(self._guides[line])
        return Region(left, line, _LEAD + cell_len(self._text(self.shown, node)), 1)

    def node_at(self, band: Band, x: int, row: int) -> int | None:
        """See `TreeView.node_at`: the whole line belongs to its node."""
        return self._order[row] if band == "body" and row < len(self._order) else None

    def step(self, node: int, move: Move) -> int:
        """See `TreeView.step`: along the lines."""
        at = self._place[node]
        match move:
            case "next":
                at = min(at + 1, len(self._order) - 1)
            case "previous":
                at = max(at - 1, 0)
            case "first":
                at = 0
            case _:
                at = len(self._order) - 1
        return self._order[at]


def _guides(view: RoundView, order: list[int]) -> list[str]:
    """The lines left of each entry that lead to its parent."""
    last: dict[int, bool] = {}
    depth: dict[int, int] = {}
    for node in range(len(view.text)):
        depth[node] = view.tree.depth[node]
        for child in view.children[node]:
            last[child] = child == view.children[node][-1]
    if view.bonus is not None:
        end = view.accepted[-1]
        depth[BONUS] = depth[end] + 1
        last[BONUS] = not view.children[end]
    out = []
    open_: list[bool] = []  # per depth, whether a sibling follows further down
    for node in order:
        level = depth[node]
        if level == 0:
            out.append(" ")
            open_ = []
            continue
        del open_[level - 1 :]
        stems = "".join("│ " if more else "  " for more in open_)
        out.append(" " + stems + ("╰╴" if last[node] else "├╴"))
        open_.append(not last[node])
    return out

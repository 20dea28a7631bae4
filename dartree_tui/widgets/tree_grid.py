"""The tree as a grid: one column a depth, one cell a node, best path scores on top.

```
 root       depth 1      depth 2      depth 3
 answer     ␣cat         ␣sat         + ␣down       what the round emitted
 ● ␣the━━━━━●0▇␣cat━━━┓  ○0▁␣is       ○1▃␣on        state, row of the parent, head's score, token
            ○0▁␣dog   ┗━━●0▆␣sat━━━━  ·0▂␣the
```
A heavy line follows the accepted path, a light one the selected node's path and its children.
While a round is under way, columns not yet grown show the drafter's marginal guesses, which know
nothing of the path.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from rich.cells import cell_len
from rich.style import Style
from textual.geometry import Region, Size

from dartree_core.glyphs import fit
from dartree_tui.palette import BARS, Palette, score_step
from dartree_tui.widgets.legend import legend
from dartree_tui.widgets.links import RIGHT, character, route
from dartree_tui.widgets.rounds import BONUS, GLYPHS, RoundView
from dartree_tui.widgets.spans import Spans
from dartree_tui.widgets.tree_view import Band, Move, TreeView

_GAP = 2
_ITALIC = Style(italic=True)
_MIN_TOKEN, _MAX_TOKEN = 7, 18


@dataclass(frozen=True, slots=True)
class _Columns:
    """Widths in cells: the root's column, another column without its gap, the number of a
    parent's row, the space before a token."""

    root: int
    cell: int
    slot: int
    space: int
    depths: int

    @classmethod
    def for_view(cls, view: RoundView, width: int) -> _Columns:
        slot = len(str(max(0, view.rows - 1)))
        root = 8 if width < 60 else 10
        fixed = 2 + slot
        depths = max(1, view.depths)
        room = (width - root) // depths - _GAP - fixed
        space = int(room > _MIN_TOKEN + 1)
        cell = fixed + space + max(_MIN_TOKEN, min(_MAX_TOKEN, room - space))
        return cls(root, cell, slot, space, depths)

    @property
    def lead(self) -> int:
        """Cells before a token: glyph, parent's row, score, space."""
        return 2 + self.slot + self.space

    def start(self, depth: int) -> int:
        """First cell of a depth's column, gap excluded."""
        return 0 if depth == 0 else self.root + (depth - 1) * (self.cell + _GAP) + _GAP

    def width(self, depth: int) -> int:
        return self.root if depth == 0 else self.cell

    def depth_at(self, x: int) -> int:
        """The column at `x`; a gap belongs to the column on its right."""
        return 0 if x < self.root else 1 + (x - self.root) // (self.cell + _GAP)

    @property
    def total(self) -> int:
        return self.start(self.depths) + self.cell


class TreeGrid(TreeView):
    """Depth × width grid of one round's tree; see `TreeView` for what it can be told.

    Keys: h parent, l child (the accepted one first), j k along the column, home and end its
    ends, g root, b bonus token, enter opens; arrows do the same.
    """

    _columns = _Columns(10, 12, 1, 1, 1)
    _accepted_links: tuple[Mapping[int, int], ...] = ()
    _selected_links: tuple[Mapping[int, int], ...] = ()

    def measure(self, size: Size) -> Size:
        """See `TreeView.measure`; also settles the columns for this width."""
        view = self.shown
        assert view is not None
        self._columns = _Columns.for_view(view, size.width)
        head, foot = self.bands(size)
        return Size(self._columns.total, head + view.rows + foot)

    def bands(self, size: Size) -> tuple[int, int]:
        """Depths and the answer on top, the legend below where there is room for it."""
        return 2, int(size.height >= 8)

    # Lines

    def draw(self, band: Band, row: int, palette: Palette) -> Spans:
        """See `TreeView.draw`."""
        view = self.shown
        assert view is not None
        if band == "foot":
            width = self.scrollable_content_region.width
            return legend(view, width, palette, self.bright, digits=True)
        if band == "head":
            return self._depths(view, palette) if row == 0 else self._answer(view, palette)
        spans: Spans = []
        if row >= view.rows:
            return spans
        for depth in range(self._columns.depths + 1):
            if depth:
                spans += self._gap(depth - 1, row, palette)
            spans += self._cell(view, depth, row, palette)
        return spans

    def _depths(self, view: RoundView, palette: Palette) -> Spans:
        spans: Spans = [(fit(" root", self._columns.root), palette.dim)]
        for depth in range(1, self._columns.depths + 1):
            label = f"depth {depth}"
            considered = view.considered.get(depth)
            if considered and self._columns.cell >= 16:
                label += f"  {len(view.columns[depth])} of {considered}"
            spans += [(" " * _GAP, palette.dim), (fit(label, self._columns.cell), palette.dim)]
        return spans

    def _answer(self, view: RoundView, palette: Palette) -> Spans:
        """The second line: the token each depth gave to the answer."""
        columns = self._columns
        spans: Spans = [(fit(" answer", columns.root), palette.dim)]
        for depth in range(1, columns.depths + 1):
            text, style = "", palette.dim
            if depth < len(view.accepted):
                text = " " * columns.lead + view.text[view.accepted[depth]]
                style = palette.state["hit"] if depth <= view.emitted else palette.dim
            elif depth == len(view.accepted) and view.bonus is not None:
                text = fit(GLYPHS["bonus"], columns.lead) + view.bonus
                style = palette.state["bonus"]
                if self.node == BONUS:
                    style += palette.cursor
            spans += [(" " * _GAP, palette.dim), (fit(text, columns.cell), style)]
        return spans

    def _cell(self, view: RoundView, depth: int, row: int, palette: Palette) -> Spans:
        columns = self._columns
        width = columns.width(depth)
        column = view.columns[depth] if depth < len(view.columns) else ()
        if row >= len(column):
            return self._guess(view, depth, row, palette)
        node = column[row]
        state = view.state[node]
        ink = palette.state[state]
        step = score_step(view.p[node])
        score = palette.score[step]
        words = ink if state in ("hit", "pruned") else score
        slot = palette.dim
        if not self.lit(node):
            ink = score = words = slot = palette.state["pruned"]
        text = view.text[node]
        if depth == 0:
            spans = [(" " + GLYPHS[state], ink), (" ", ink)]
        else:
            parent = view.row[view.tree.parent[node]]
            spans = [
                (GLYPHS[state], ink),
                (f"{parent:>{columns.slot}}", slot),
                (BARS[step] + " " * columns.space, score),
            ]
        room = width - sum(cell_len(piece) for piece, _ in spans)
        used = min(room, cell_len(text))
        spans.append((fit(text, used), words))
        marked = self.emphasis(node, palette)
        if marked is not None:
            spans = [(piece, style + marked) for piece, style in spans]
        line, style = self._trail(depth, row, palette)
        spans.append((line * (room - used), style))
        return spans

    def _guess(self, view: RoundView, depth: int, row: int, palette: Palette) -> Spans:
        columns = self._columns
        width = columns.width(depth)
        waiting = depth >= len(view.columns) and depth - 1 < len(view.guesses)
        guesses = view.guesses[depth - 1] if waiting else ()
        if row >= len(guesses):
            return [(" " * width, palette.dim)]
        guess = guesses[row]
        lead = " " * (1 + columns.slot) + BARS[score_step(guess.p)] + " " * columns.space
        return [(fit(lead + guess.text, width), palette.dim + _ITALIC)]

    # Links

    def _light(self) -> None:
        super()._light()
        view = self.shown
        accepted: dict[int, set[tuple[int, int]]] = defaultdict(set)
        selected: dict[int, set[tuple[int, int]]] = defaultdict(set)
        if view is not None:
            parents = view.tree.parent
            for node in view.accepted[1:]:
                self._link(view, accepted, parents[node], node)
            if self.node is not None and self.node > 0:
                for node in view.tree.path(self.node)[1:]:
                    self._link(view, selected, parents[node], node)
            for node in self._children:
                self._link(view, selected, parents[node], node)
        depths = 0 if view is None else max(1, view.depths) + 1
        self._accepted_links = tuple(route(accepted[d]) for d in range(depths))
        self._selected_links = tuple(route(selected[d]) for d in range(depths))

    @staticmethod
    def _link(
        view: RoundView, into: dict[int, set[tuple[int, int]]], parent: int, child: int
    ) -> None:
        into[view.tree.depth[parent]].add((view.row[parent], view.row[child]))

    def _line(self, depth: int, row: int, palette: Palette) -> tuple[int, bool, Style]:
        """Directions, weight and style of the line in the gap right of `depth`."""
        accepted = self._accepted_links[depth].get(row, 0)
        selected = self._selected_links[depth].get(row, 0)
        style = palette.state["hit"] if accepted else palette.accent
        return accepted | selected, bool(accepted), style

    def _gap(self, depth: int, row: int, palette: Palette) -> Spans:
        directions, heavy, style = self._line(depth, row, palette)
        ending = directions & RIGHT
        if ending:
            heavy_end = bool(self._accepted_links[depth].get(row, 0) & RIGHT)
            end = character(3, heavy_end)
        else:
            end = " "
        return [(character(directions, heavy), style), (end, style)]

    def _trail(self, depth: int, row: int, palette: Palette) -> tuple[str, Style]:
        """What fills a cell after its token: the line on its way out, or blanks."""
        if depth >= len(self._accepted_links):
            return " ", palette.dim
        for links, heavy, style in (
            (self._accepted_links, True, palette.state["hit"]),
            (self._selected_links, False, palette.accent),
        ):
            if links[depth].get(row, 0) & 1:
                return character(3, heavy), style
        return " ", palette.dim

    # Places

    def region_of(self, node: int) -> Region | None:
        """See `TreeView.region_of`; the bonus token is in the header, in its depth's column."""
        view = self.shown
        assert view is not None
        if node == BONUS:
            depth = len(view.accepted)
            top = self.scroll_offset.y
            return Region(self._columns.start(depth), top, self._columns.cell, 1)
        depth = view.tree.depth[node]
        return Region(
            max(0, self._columns.start(depth) - _GAP),
            view.row[node],
            self._columns.width(depth) + _GAP,
            1,
        )

    def node_at(self, band: Band, x: int, row: int) -> int | None:
        """See `TreeView.node_at`."""
        view = self.shown
        assert view is not None
        depth = self._columns.depth_at(x)
        if band == "head" and row == 1:
            if depth == len(view.accepted) and view.bonus is not None:
                return BONUS
            return view.accepted[depth] if depth < len(view.accepted) else None
        if band != "body" or depth >= len(view.columns):
            return None
        column = view.columns[depth]
        return column[row] if row < len(column) else None

    def step(self, node: int, move: Move) -> int:
        """See `TreeView.step`: along the column, on top of which the bonus token stands."""
        view = self.shown
        assert view is not None
        depth = len(view.accepted) if node == BONUS else view.tree.depth[node]
        column = view.columns[depth] if depth < len(view.columns) else ()
        if view.bonus is not None and depth == len(view.accepted):
            column = (BONUS, *column)
        at = column.index(node)
        match move:
            case "next":
                return column[min(at + 1, len(column) - 1)]
            case "previous":
                return column[max(at - 1, 0)]
            case "first":
                return column[0]
            case _:
                return column[-1]

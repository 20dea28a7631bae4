"""What the two drawings of a tree share: the round shown, the selected node, search, filter.

A subclass draws lines; this class scrolls them, keeps header and footer in place, remembers
finished lines, and turns keys and clicks into selections.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar, Literal

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.cache import LRUCache
from textual.geometry import Offset, Region, Size
from textual.message import Message
from textual.strip import Strip

from dartree_tui.palette import Palette
from dartree_tui.vocab import Words
from dartree_tui.widgets.line_view import LineView
from dartree_tui.widgets.rounds import BONUS, NodeState, RoundLike, RoundView, view_of
from dartree_tui.widgets.spans import Spans, joined

Move = Literal["parent", "child", "next", "previous", "first", "last", "root", "bonus"]
Band = Literal["head", "body", "foot"]


@dataclass
class NodeSelected(Message):
    """The selection moved, by key, click or search.

    Attributes:
        view: The widget that sent it.
        node: A node id, or `BONUS` (-1) for the bonus token.
    """

    view: TreeView
    node: int

    @property
    def control(self) -> TreeView:
        """The widget that sent it, for `@on` selectors."""
        return self.view


@dataclass
class NodeOpened(Message):
    """Enter was pressed on the selected node, or it was clicked again; fields as above."""

    view: TreeView
    node: int

    @property
    def control(self) -> TreeView:
        """The widget that sent it, for `@on` selectors."""
        return self.view


class TreeView(LineView):
    """A scrolling drawing of one round.

    Attributes:
        shown: The round on show, or None.
        node: The selected node, `BONUS`, or None.
        bright: States a filter leaves bright; None without one.
        placeholder: What an empty view says.
        lines_built: How many lines were drawn so far rather than remembered (for profiling).
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("h,left", "move('parent')", "parent", show=False, id="tree.parent"),
        Binding("l,right", "move('child')", "child", show=False, id="tree.child"),
        Binding("j,down", "move('next')", "next", show=False, id="tree.next"),
        Binding("k,up", "move('previous')", "previous", show=False, id="tree.previous"),
        Binding("home", "move('first')", "first", show=False, id="tree.first"),
        Binding("end", "move('last')", "last", show=False, id="tree.last"),
        Binding("g", "move('root')", "root", show=False, id="tree.root"),
        Binding("b", "move('bonus')", "bonus token", show=False, id="tree.bonus"),
        Binding("enter", "open_node", "show the node pane", show=False, id="tree.open"),
    ]

    ALLOW_SELECT = False

    _REMEMBERED: ClassVar[int] = 512

    def __init__(
        self,
        *,
        placeholder: str = "No round yet. Ask something to watch a tree grow.",
        name: str | None = None,
        id: str | None = None,
        classes: str | None = None,
    ) -> None:
        super().__init__(name=name, id=id, classes=classes)
        self.placeholder = placeholder
        self.shown: RoundView | None = None
        self.node: int | None = None
        self.lines_built = 0
        self.bright: frozenset[NodeState] | None = None
        self._path: frozenset[int] = frozenset()
        self._children: frozenset[int] = frozenset()
        self._lines: LRUCache[tuple[Band, int], Strip] = LRUCache(self._REMEMBERED)
        self._palette: Palette | None = None
        self._brush: tuple[Palette, Style] | None = None
        self._measured = Size(0, 0)

    # What a subclass draws

    def measure(self, size: Size) -> Size:
        """Size of the whole drawing, header and footer included, in a viewport of `size`."""
        raise NotImplementedError

    def bands(self, size: Size) -> tuple[int, int]:
        """Lines of the fixed header and of the fixed footer."""
        raise NotImplementedError

    def draw(self, band: Band, row: int, palette: Palette) -> Spans:
        """Pieces of one line; `row` counts within its band."""
        raise NotImplementedError

    def region_of(self, node: int) -> Region | None:
        """Where a node is in the body, in body coordinates; None for what is not there."""
        raise NotImplementedError

    def node_at(self, band: Band, x: int, row: int) -> int | None:
        """The node or bonus at a column of a line."""
        raise NotImplementedError

    def step(self, node: int, move: Move) -> int:
        """Where a move in the drawing's own order leads; `node` itself at an end."""
        raise NotImplementedError

    # What others call

    def show_round(self, round_: RoundLike | None, vocab: Words) -> None:
        """Show a round: finished, or under way (see `RoundLike`); None clears the view.

        The selection stays while the same round grows, and is dropped when another comes.
        """
        view = None if round_ is None else view_of(round_, vocab)
        fresh = view is None or not view.same_round(self.shown)
        self.shown = view
        if fresh or (self.node is not None and not self._exists(self.node)):
            self.node = None
        self._light()
        self._redraw(layout=True)
        if fresh and self.scroll_offset != (0, 0):
            self.scroll_to(0, 0, animate=False, force=True)

    def select(self, node: int | None, notify: bool = True) -> None:
        """Select a node, `BONUS`, or nothing, and bring it into sight.

        Args:
            node: Ignored when the round has no such node.
            notify: Send `NodeSelected` when the selection changed.
        """
        if node is not None and not self._exists(node):
            return
        changed = node != self.node
        self.node = node
        self._light()
        self._redraw()
        if node is None:
            return
        self._bring_into_sight()
        self.call_after_refresh(self._bring_into_sight)  # scroll bars may cover it by then
        if notify and changed:
            self.post_message(NodeSelected(self, node))

    def find(self, text: str, backwards: bool = False) -> int | None:
        """Select the next token that contains `text`, letter case and blanks' look ignored.

        Starts after the selected node and goes around.

        Returns:
            The node, or None when no token matches.
        """
        if self.shown is None or not text:
            return None
        wanted = text.casefold().replace("␣", " ")
        order = list(range(len(self.shown.text)))
        texts = dict(enumerate(self.shown.text))
        if self.shown.bonus is not None:
            order.append(BONUS)
            texts[BONUS] = self.shown.bonus
        at = order.index(self.node) if self.node in order else 0
        if backwards:
            order = (order[at:] + order[:at])[::-1]
        elif self.node is not None:
            order = order[at + 1 :] + order[: at + 1]
        for node in order:
            if wanted in texts[node].replace("␣", " ").casefold():
                self.select(node)
                return node
        return None

    def filter(self, states: Collection[NodeState] | None) -> None:
        """Keep nodes of these states bright and dim all others; None ends it."""
        self.bright = None if states is None else frozenset(states)
        self._redraw()

    # Drawing

    def lit(self, node: int) -> bool:
        """False where a filter dims the node."""
        return self.bright is None or self.shown is None or self.shown.state[node] in self.bright

    def emphasis(self, node: int, palette: Palette) -> Style | None:
        """The background or inversion that marks a node as selected, on the path, or a child."""
        if node == self.node:
            return palette.cursor
        if node in self._path:
            return palette.path
        return palette.children if node in self._children else None

    def render_line(self, y: int) -> Strip:
        """One line of the viewport."""
        palette, base = self._brush or self._take_brush()
        size = self.scrollable_content_region.size
        if self.shown is None:
            text = self.placeholder if y == 0 else ""
            strip = Strip([Segment(text, base + palette.dim)])
            return strip.adjust_cell_length(size.width, base)
        band, row = self._locate(y, size)
        key = (band, row)
        strip_ = self._lines.get(key)
        if strip_ is None:
            self.lines_built += 1
            strip_ = Strip(
                [
                    Segment(text, base + style)
                    for text, style in joined(self.draw(band, row, palette))
                ]
            )
            self._lines[key] = strip_
        left = 0 if band == "foot" else self.scroll_offset.x
        return strip_.crop_extend(left, left + size.width, base)

    def render_lines(self, crop: Region) -> list[Strip]:
        """The lines of a region; colours are looked up once for all of them."""
        self._brush = self._take_brush()
        try:
            return super().render_lines(crop)
        finally:
            self._brush = None

    def _take_brush(self) -> tuple[Palette, Style]:
        """Colours and the style underneath, which a style sheet or a theme may change any time."""
        palette = Palette.of(self.app)
        if palette is not self._palette:
            self._palette = palette
            self._lines.clear()
        return palette, self.rich_style

    def _locate(self, y: int, size: Size) -> tuple[Band, int]:
        head, foot = self.bands(size)
        if y < head:
            return "head", y
        if y >= size.height - foot:
            return "foot", y - (size.height - foot)
        return "body", y - head + self.scroll_offset.y

    def _redraw(self, layout: bool = False) -> None:
        self._lines.clear()
        if layout:
            self._measure()
            # Scroll bars appear without a resize event and take room away.
            self.call_after_refresh(self._measure_again)
        self.refresh()

    def _measure(self) -> None:
        size = self._measured = self.scrollable_content_region.size
        drawing = Size(0, 0) if self.shown is None else self.measure(size)
        # A bar that came stays: rounds differ in what they need, the drawing would jump at each,
        # and each time the whole screen would be arranged anew.
        if drawing.width > size.width:
            self.styles.overflow_x = "scroll"
        if drawing.height > size.height:
            self.styles.overflow_y = "scroll"
        self.virtual_size = drawing

    def _measure_again(self) -> None:
        if self.scrollable_content_region.size != self._measured:
            self._lines.clear()
            self._measure()
            self.refresh()
            self._bring_into_sight()

    def _light(self) -> None:
        """Work out which nodes light up with the selection."""
        self._path = self._children = frozenset()
        if self.shown is None or self.node is None:
            return
        if self.node == BONUS:
            self._path = frozenset(self.shown.accepted)
            return
        self._path = frozenset(self.shown.tree.path(self.node)) - {self.node}
        self._children = frozenset(self.shown.children[self.node])

    def _exists(self, node: int) -> bool:
        if self.shown is None:
            return False
        return self.shown.bonus is not None if node == BONUS else 0 <= node < len(self.shown.text)

    def _bring_into_sight(self) -> None:
        if self.node is None:
            return
        region = self.region_of(self.node)
        if region is None:
            return
        size = self.scrollable_content_region.size
        head, foot = self.bands(size)
        room = Size(size.width, max(1, size.height - head - foot))
        offset = self.scroll_offset
        window = Region(offset.x, offset.y, room.width, room.height)
        shift = _shift(window, region)
        if shift:
            self.scroll_to(offset.x + shift.x, offset.y + shift.y, animate=False, force=True)

    # Input

    def action_move(self, move: Move) -> None:
        """Move the selection; without one, start where the acceptance ended."""
        if self.shown is None:
            return
        if move in ("root", "bonus"):
            self.select(0 if move == "root" else BONUS)
        elif self.node is None:
            self.select(self.shown.accepted[-1])
        else:
            self.select(self._neighbour(self.node, move))

    def _neighbour(self, node: int, move: Move) -> int:
        view = self.shown
        assert view is not None
        if move == "parent":
            return view.accepted[-1] if node == BONUS else max(0, view.tree.parent[node])
        if move == "child":
            if node == BONUS:
                return node
            children = view.children[node]
            followed = [c for c in children if c in view.accepted]
            if children:
                return (followed or list(children))[0]
            return BONUS if node == view.accepted[-1] and view.bonus is not None else node
        return self.step(node, move)

    def action_open_node(self) -> None:
        """Send `NodeOpened` for the selected node."""
        if self.node is not None:
            self.post_message(NodeOpened(self, self.node))

    def on_click(self, event: events.Click) -> None:
        """Select what was clicked; a click on the selection opens it."""
        at = event.get_content_offset(self)
        if at is None or self.shown is None:
            return
        band, row = self._locate(at.y, self.scrollable_content_region.size)
        node = self.node_at(band, at.x + self.scroll_offset.x, row)
        if node is None:
            return
        if node == self.node:
            self.action_open_node()
        else:
            self.select(node)

    def on_resize(self) -> None:
        """Lay out again for the new size."""
        self.styles.overflow_x = self.styles.overflow_y = "auto"
        self._redraw(layout=True)


def _shift(window: Region, wanted: Region) -> Offset:
    """Smallest scroll that brings `wanted` into `window`."""

    def axis(low: int, high: int, first: int, last: int) -> int:
        if first < low or last - first > high - low:
            return first - low
        return max(0, last - high)

    return Offset(
        axis(window.x, window.right, wanted.x, wanted.right),
        axis(window.y, window.bottom, wanted.y, wanted.bottom),
    )

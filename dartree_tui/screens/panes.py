"""Which panes of the main screen are seen, and which of them has the room."""

from __future__ import annotations

from typing import Literal

from textual import on
from textual.screen import Screen

from dartree_tui.widgets.tree_view import NodeOpened

Pane = Literal["tree", "timeline", "chat", "node", "stats"]
PANES: tuple[Pane, ...] = ("tree", "timeline", "chat", "node", "stats")
SMALL_CYCLE: tuple[Pane, ...] = ("chat", "node", "stats")
TINY_CYCLE: tuple[Pane, ...] = ("chat", "tree", "node", "stats")
TITLES = {"tree": "tree", "chat": "chat", "node": "node", "stats": "statistics"}

MIN_WIDTH, MIN_HEIGHT = 40, 12


class PaneScreen(Screen[None]):
    """A screen of panes. The style sheet does the layout, told by classes of the screen."""

    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012 - declared by Screen
        (0, "-too-narrow"),
        (MIN_WIDTH, "-narrow"),
        (100, "-wide"),
    ]
    VERTICAL_BREAKPOINTS = [  # noqa: RUF012 - declared by Screen
        (0, "-too-low"),
        (MIN_HEIGHT, "-tiny"),
        (20, "-low"),
        (30, "-medium"),
        (46, "-tall"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._hidden: set[Pane] = set()
        self._pane: Pane = "chat"
        self._whole: Pane | None = None

    def arranged(self) -> None:
        """Called when other panes are seen."""

    def focus_tree(self) -> None:
        """Called when the tree pane got the room."""

    @property
    def too_small(self) -> bool:
        """True when there is no room for anything but a notice."""
        return self.size.width < MIN_WIDTH or self.size.height < MIN_HEIGHT

    def _arrange(self) -> None:
        """Tell the style sheet what is hidden, what is whole, and which pane has the room."""
        for pane in PANES:
            self.set_class(pane in self._hidden, f"-no-{pane}")
            self.set_class(pane == self._whole, f"-whole-{pane}")
            self.set_class(pane == self._pane, f"-on-{pane}")
        self.set_class(self._whole is not None, "-whole")
        self.arranged()

    @on(NodeOpened)
    def _node_opened(self) -> None:
        """Bring the node pane into view, whatever hides it; the tree keeps the focus if it can."""
        self._hidden.discard("node")
        self._whole, self._pane = None, "node"
        self._arrange()
        if self.has_class("-tiny"):  # one pane at all
            self.query_one("#node").focus()

    def action_toggle_pane(self, pane: Pane) -> None:
        """Show or hide a pane."""
        self._hidden ^= {pane}
        self._arrange()

    def action_next_pane(self) -> None:
        """On a small screen, give the room to the next pane; else move the focus there."""
        tiny = self.has_class("-tiny")
        cycle = TINY_CYCLE if tiny else SMALL_CYCLE
        if self.has_class("-wide") and not tiny:
            self.focus_next()
            return
        place = cycle.index(self._pane) if self._pane in cycle else -1
        self._pane = cycle[(place + 1) % len(cycle)]
        self._arrange()
        if self._pane == "tree":
            self.focus_tree()

    def action_whole(self) -> None:
        """Give the whole screen to the focused pane, or take it back."""
        if self._whole is not None:
            self._whole = None
        elif self.focused is not None:
            owners = {"grid": "tree", "outline": "tree"}
            name = owners.get(self.focused.id or "", self.focused.id)
            self._whole = next((p for p in PANES if p == name), "tree")
        self._arrange()

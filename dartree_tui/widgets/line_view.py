"""Panes that draw their own lines, whose content changes without the screen being arranged anew."""

from __future__ import annotations

from textual.geometry import Size
from textual.reactive import Reactive
from textual.scroll_view import ScrollView


class LineView(ScrollView, can_focus=True):
    """A scroll view of a fixed place on the screen.

    Textual arranges the whole screen when the content of any scroll view changes its size, and
    paints all that moved. Here nothing moves: the pane has its place whatever it shows, and only
    a scroll bar that comes or goes takes room from the lines.

    Attributes:
        virtual_size: Cells of the whole content; scroll bars follow it.
    """

    DEFAULT_CSS = "LineView { scrollbar-size: 1 1; }"

    virtual_size = Reactive(Size(0, 0), layout=False, repaint=False)

    def watch_virtual_size(self, size: Size) -> None:
        """Let the scroll bars show how much there is."""
        if self.is_mounted:
            self._scroll_update(size)

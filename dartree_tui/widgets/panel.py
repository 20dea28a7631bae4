"""A scrolling pane of styled text that is written anew when content, size or theme change."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.geometry import Size
from textual.widgets import Static

from dartree_tui.palette import Palette
from dartree_tui.widgets.visible import visible


class TextPanel(VerticalScroll, can_focus=True):
    """Base of panes whose content is a pure function of data, size and palette."""

    DEFAULT_CSS = """
    TextPanel { height: 1fr; scrollbar-size-vertical: 1; }
    TextPanel > Static { width: 1fr; height: auto; }
    """

    _painted: tuple[Size, Palette] | None = None
    _rows = 0
    _text: Text | None = None

    def compose(self) -> ComposeResult:
        """The one widget that holds the text."""
        yield Static()

    def write(self, size: Size, palette: Palette) -> Text:
        """The text for a pane of `size`; called whenever something changed."""
        raise NotImplementedError

    def rewrite(self) -> None:
        """Write the text again; cheap to call before the pane is on screen."""
        if not self.is_mounted or not self.size:
            return
        palette = Palette.of(self.app)
        resized = self._painted != (self.size, palette)
        self._painted = (self.size, palette)
        text = self.write(self.size, palette)
        text.plain = visible(text.plain)
        text.style = palette.text  # a segment without a style breaks monochrome output
        if text == self._text and not resized:
            return
        self._text = text
        # A new arrangement redraws the whole screen; text of the same height needs none.
        rows = len(text.wrap(self.app.console, max(1, self.size.width)))
        self.query_one(Static).update(text, layout=rows != self._rows)
        self._rows = rows

    def on_mount(self) -> None:
        """Write once there is a theme, and again when it changes."""
        self.app.theme_changed_signal.subscribe(self, lambda _theme: self.rewrite())
        self.call_after_refresh(self.rewrite)

    def on_resize(self) -> None:
        """Write for the new size."""
        if self._painted is None or self._painted[0] != self.size:
            self.rewrite()

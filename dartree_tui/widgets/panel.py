"""A scrolling pane of styled text that is written anew when content, size or theme change."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.geometry import Size
from textual.selection import Selection
from textual.strip import Strip

from dartree_tui.palette import Palette
from dartree_tui.widgets.line_view import LineView
from dartree_tui.widgets.visible import visible


@dataclass(frozen=True, slots=True)
class Line:
    """A line on the screen: the part of a line of the text that fits.

    Attributes:
        text: What it shows.
        row: The line of the text it is part of.
        start: Its first character's place in that.
    """

    text: Text
    row: int
    start: int


class TextPanel(LineView):
    """Base of panes whose content is a pure function of data, size and palette.

    Its text can be selected with the mouse.
    """

    DEFAULT_CSS = "TextPanel { height: 1fr; overflow-x: hidden; }"

    _painted: tuple[Size, Palette] | None = None
    _text: Text | None = None
    _lines: tuple[Line, ...] = ()

    def write(self, size: Size, palette: Palette) -> Text:
        """The text for a pane of `size`; called whenever something changed."""
        raise NotImplementedError

    def rewrite(self) -> None:
        """Write the text again; cheap to call before the pane is on screen."""
        size = self.content_size
        if not self.is_mounted or not size:
            return
        palette = Palette.of(self.app)
        anew = self._painted != (size, palette)
        self._painted = size, palette
        text = self.write(size, palette)
        text.plain = visible(text.plain)
        text.expand_tabs(8)
        text.style = palette.text  # a segment without a style breaks monochrome output
        if text == self._text and not anew:
            return
        console = self.app.console
        lines = wrapped(text, size.width, console)
        if len(lines) > size.height:  # a scroll bar will stand beside them
            bar = self.styles.scrollbar_size_vertical
            lines = wrapped(text, max(1, size.width - bar), console)
        before, self._lines, self._text = self._lines, lines, text
        self.virtual_size = Size(size.width, len(lines))
        if anew:
            self.refresh()
            return
        top = round(self.scroll_y)
        for y in range(top, top + size.height):
            if lines[y : y + 1] != before[y : y + 1]:
                self.refresh_lines(y)

    def render_line(self, y: int) -> Strip:
        """One line of the viewport."""
        base = self.rich_style
        width = self.scrollable_content_region.width
        y += round(self.scroll_y)
        if y >= len(self._lines):
            return Strip.blank(width, base)
        line = self._lines[y]
        text = line.text
        span = self.text_selection and self.text_selection.get_span(line.row)
        if span:
            first, last = (max(0, place - line.start) for place in span)
            text = text.copy()
            text.stylize(self.selection_style, first, len(text) if span[1] < 0 else last)
        strip = Strip(
            Segment(piece, base + style if isinstance(style, Style) else base)
            for piece, style, _ in text.render(self.app.console)
        )
        return strip.crop_extend(0, width, base).apply_offsets(line.start, line.row)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The selected text, as it was before it was broken into lines, and what ends it."""
        return selection.extract(self._text.plain if self._text else ""), "\n"

    def on_mount(self) -> None:
        """Write once there is a theme, and again when it changes."""
        self.app.theme_changed_signal.subscribe(self, lambda _theme: self.rewrite())
        self.call_after_refresh(self.rewrite)

    def on_resize(self) -> None:
        """Write for the new size."""
        if self._painted is None or self._painted[0] != self.content_size:
            self.rewrite()


def wrapped(text: Text, width: int, console: Console) -> tuple[Line, ...]:
    """The lines of `text` on a screen of `width` cells."""
    out: list[Line] = []
    for row, whole in enumerate(text.split(allow_blank=True)):
        end = 0
        for part in whole.wrap(console, width):
            start = whole.plain.index(part.plain, end)
            end = start + len(part)
            out.append(Line(part, row, start))
    return tuple(out)

"""Every round as one cell: its height is the number of draft tokens that were accepted.

```
 round   ▁   ▄▇  ▂
 18/142  █▂▅▇██▃▆█▅▁▇
         82578 …       the same as a digit: a is 10, b is 11
```
Only the rounds in the window are drawn, so thousands cost no more than a screenful.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from dartree_core.glyphs import fit
from dartree_tui.palette import BARS, Palette

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass
class RoundSelected(Message):
    """Someone chose a round.

    Attributes:
        timeline: The widget that sent it.
        index: Index into the sequence given to `Timeline.show`.
    """

    timeline: Timeline
    index: int

    @property
    def control(self) -> Timeline:
        """The widget that sent it, for `@on` selectors."""
        return self.timeline


class Timeline(Widget, can_focus=True):
    """Strip of rounds to scrub through.

    Keys: left and right one round, page keys a windowful, home and end, w and shift+w the next
    and the previous of the rounds that accepted least. Click or drag to any round; the wheel
    moves one at a time. Each sends `RoundSelected`; the owner answers with `show`.
    """

    DEFAULT_CSS = "Timeline { height: 3; }"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "step(-1)", "earlier", show=False, id="timeline.earlier"),
        Binding("right,l", "step(1)", "later", show=False, id="timeline.later"),
        Binding("pageup", "page(-1)", "page back", show=False, id="timeline.page-back"),
        Binding("pagedown", "page(1)", "page on", show=False, id="timeline.page-on"),
        Binding("home", "go(0)", "first round", show=False, id="timeline.first"),
        Binding("end", "go(-1)", "last round", show=False, id="timeline.last"),
        Binding("w", "worst(1)", "worst round", show=False, id="timeline.worst"),
        Binding("W", "worst(-1)", "worst round before", show=False, id="timeline.worst-before"),
    ]

    ALLOW_SELECT = False

    _accepted: Sequence[int] = ()
    _current = -1
    _max = 1
    _first = 0

    def show(self, accepted: Sequence[int], current: int, max_accept: int) -> None:
        """Show rounds and mark one.

        Args:
            accepted: Draft tokens accepted in each round, the bonus token not counted. Kept by
                reference and read when painting; call again after it grew.
            current: Index of the marked round; -1 marks none.
            max_accept: What a full-height cell means.
        """
        self._accepted = accepted
        self._current = min(current, len(accepted) - 1)
        self._max = max(1, max_accept)
        self.tooltip = f"height: draft tokens accepted, of at most {self._max}"
        self._settle()
        self.refresh()

    # Window

    @property
    def _gutter(self) -> int:
        return 2 + max(6, len(self._label()))

    @property
    def _room(self) -> int:
        """Rounds that fit into the window; one cell on either side says that there are more."""
        return max(1, self.size.width - self._gutter - 2)

    @property
    def window(self) -> range:
        """Indices of the rounds in sight."""
        return range(self._first, min(len(self._accepted), self._first + self._room))

    def _settle(self) -> None:
        """Move the window no further than the marked round demands."""
        if not self.size.width:
            return
        room, count = self._room, len(self._accepted)
        margin = min(4, (room - 1) // 2)
        first = self._first
        if self._current >= 0:
            first = min(first, self._current - margin)
            first = max(first, self._current + margin + 1 - room)
        self._first = max(0, min(first, count - room))

    def _label(self) -> str:
        count = len(self._accepted)
        return f"{self._current + 1}/{count}" if self._current >= 0 else str(count)

    # Drawing

    def render_line(self, y: int) -> Strip:
        """One line of the strip."""
        palette = Palette.of(self.app)
        base = self.rich_style
        height = self.size.height
        bars = max(1, height - 1)
        gutter = fit({0: " round", 1: f" {self._label()}"}.get(y, ""), self._gutter)
        if height == 1:
            gutter = fit(f" {self._label()}", self._gutter)
        window = self.window
        pieces = [Segment(gutter, base + palette.dim)]
        edge = min(1, height - 1)
        before = "‹" if window.start > 0 and y == edge else " "
        after = "›" if window.stop < len(self._accepted) and y == edge else " "
        pieces.append(Segment(before, base + palette.dim))
        run, run_style = "", palette.dim
        for index in window:
            char, style = self._cell(index, y, bars, palette)
            if style is not run_style and run:
                pieces.append(Segment(run, base + run_style))
                run = ""
            run, run_style = run + char, style
        if run:
            pieces.append(Segment(run, base + run_style))
        pieces.append(Segment(after, base + palette.dim))
        return Strip(pieces).adjust_cell_length(self.size.width, base)

    def _cell(self, index: int, y: int, bars: int, palette: Palette) -> tuple[str, Style]:
        value = self._accepted[index]
        marked = index == self._current
        if y >= bars:
            digit = _DIGITS[value] if 0 <= value < len(_DIGITS) else "+"
            return digit, palette.cursor if marked else palette.dim
        style = palette.state["hit"] if value else palette.dim
        if marked:
            style = palette.state["bonus"]
        # A round that accepted nothing still shows as a foot, so that it can be hit and seen.
        eighths = max(1, round(min(value, self._max) / self._max * bars * 8))
        filled = eighths - (bars - 1 - y) * 8
        return (" " if filled <= 0 else BARS[min(filled, 8) - 1]), style

    # Input

    def _choose(self, index: int) -> None:
        if not self._accepted:
            return
        index = max(0, min(index, len(self._accepted) - 1))
        if index != self._current:
            self._current = index
            self._settle()
            self.refresh()
            self.post_message(RoundSelected(self, index))

    def action_step(self, by: int) -> None:
        """Go some rounds on or back; without a mark, start at the last one."""
        at = self._current if self._current >= 0 else len(self._accepted)
        self._choose(at + by)

    def action_page(self, direction: int) -> None:
        """Go a windowful on or back."""
        self.action_step(direction * self._room)

    def action_go(self, index: int) -> None:
        """Go to a round; -1 is the last one."""
        self._choose(index if index >= 0 else len(self._accepted) - 1)

    def action_worst(self, direction: int) -> None:
        """Go to the next of the rounds that accepted least, around the end."""
        if not self._accepted:
            return
        least = min(self._accepted)
        count = len(self._accepted)
        start = self._current if self._current >= 0 else (-1 if direction > 0 else count)
        for k in range(1, count + 1):
            index = (start + direction * k) % count
            if self._accepted[index] == least:
                self._choose(index)
                return

    def _pick(self, event: events.MouseEvent) -> None:
        at = event.get_content_offset_capture(self)
        self._choose(self._first + at.x - self._gutter - 1)

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Start scrubbing."""
        if event.button == 1:
            self.capture_mouse()
            self._pick(event)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Scrub while the button is down."""
        if self.app.mouse_captured is self:
            self._pick(event)

    def on_mouse_up(self) -> None:
        """Stop scrubbing."""
        self.release_mouse()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """One round back."""
        event.stop()
        self.action_step(-1)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """One round on."""
        event.stop()
        self.action_step(1)

    def on_resize(self) -> None:
        """Keep the marked round in sight."""
        self._settle()

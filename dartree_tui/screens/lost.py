"""The worker is gone: what it said last, and a new one on request."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Static

from dartree_tui.engines import Lost
from dartree_tui.screens.dialogs import Dialog
from dartree_tui.widgets.visible import visible

KEPT = "Conversation, trees and prompt are kept. "
GO_ON = (
    "enter restarts and goes on with the answer where it was cut; ctrl+r only restarts, now or "
    "later; esc closes."
)
RESTART = "enter restarts with the same models; esc closes, ctrl+r restarts later."


class LostScreen(Dialog):
    """Last log lines; enter starts another worker, escape leaves it for later.

    Args:
        lost: What happened.
        log: Where the whole log is.
        cut: An answer was cut off, so that a new worker can go on with it.
    """

    DEFAULT_CSS = """
    LostScreen > .box { width: 96; border: round $warning; }
    LostScreen .message { height: auto; }
    LostScreen .tail { height: auto; max-height: 50vh; margin: 1 0; scrollbar-size-vertical: 1; }
    LostScreen .tail Static { color: $dim; height: auto; }
    LostScreen.-tiny .tail { margin: 0; }
    """
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (20, "-high")]  # noqa: RUF012 - declared by Screen
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "restart(True)", "restart and go on", id="lost.restart"),
        Binding("ctrl+r", "restart(False)", "only restart", id="lost.only-restart"),
    ]

    def __init__(self, lost: Lost, log: str, cut: bool) -> None:
        super().__init__()
        self._lost = lost
        self._log = log
        self._cut = cut

    def compose(self) -> ComposeResult:
        """What happened, the log's end, what to do."""
        box = Vertical(classes="box")
        box.border_title = "the worker is gone"
        tail = "\n".join(self._lost.tail) or "It wrote nothing into its log."
        where = f"\nThe whole log: {self._log}" if self._log else ""
        with box:
            yield Static(visible(self._lost.message), classes="message", markup=False)
            with VerticalScroll(classes="tail"):
                yield Static(visible(tail + where), markup=False)
            yield Static(KEPT + (GO_ON if self._cut else RESTART), classes="hint")

    def on_resize(self) -> None:
        """The log gets the rows that cause and keys leave; its end is what counts."""
        self.call_after_refresh(self._fit)

    def _fit(self) -> None:
        box, tail = self.query_one(".box"), self.query_one(".tail")
        others = sum(w.outer_size.height for w in box.children if w is not tail)
        room = self.size.height - box.gutter.height - others - tail.styles.margin.height
        tail.styles.max_height = max(1, room)
        tail.scroll_end(animate=False)

    def action_restart(self, go_on: bool) -> None:
        """Start another worker, and let it go on with the answer that was cut."""
        self.app.client.restart(go_on=go_on)
        self.dismiss()

"""The worker is gone: what it said last, and a new one on request."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Static

from dartree_tui.engines import Lost
from dartree_tui.screens.dialogs import Dialog
from dartree_tui.widgets.visible import visible

KEPT = "Conversation, trees and prompt are kept. "
GO_ON = (
    "enter starts another worker with the same models, which goes on with the answer where it was "
    "cut; ctrl+r only starts it. esc closes; ctrl+r restarts later, ctrl+g then goes on."
)
RESTART = (
    "enter starts another worker and loads the same models; esc closes, and ctrl+r restarts later."
)


class LostScreen(Dialog):
    """Last log lines; enter starts another worker, escape leaves it for later.

    Args:
        lost: What happened.
        log: Where the whole log is.
        cut: An answer was cut off, so that a new worker can go on with it.
    """

    DEFAULT_CSS = """
    LostScreen > .box { width: 96; border: round $warning; }
    LostScreen .tail { color: $dim; height: auto; margin: 1 0; }
    """
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
            yield Static(visible(self._lost.message), markup=False)
            yield Static(visible(tail + where), classes="tail", markup=False)
            yield Static(KEPT + (GO_ON if self._cut else RESTART), classes="hint")

    def action_restart(self, go_on: bool) -> None:
        """Start another worker, and let it go on with the answer that was cut."""
        self.app.client.restart(go_on=go_on)
        self.dismiss()

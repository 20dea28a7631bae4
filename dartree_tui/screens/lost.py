"""The worker is gone: what it said last, and a new one on request."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Static

from dartree_tui.engines import Lost
from dartree_tui.screens.dialogs import Dialog


class LostScreen(Dialog):
    """Last log lines; enter starts another worker, escape leaves it for later."""

    DEFAULT_CSS = """
    LostScreen > .box { width: 96; border: round $warning; }
    LostScreen .tail { color: $dim; height: auto; margin: 1 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,ctrl+r", "restart", "restart", id="lost.restart")
    ]

    def __init__(self, lost: Lost, log: str) -> None:
        super().__init__()
        self._lost = lost
        self._log = log

    def compose(self) -> ComposeResult:
        """What happened, the log's end, what to do."""
        box = Vertical(classes="box")
        box.border_title = "the worker is gone"
        tail = "\n".join(self._lost.tail) or "It wrote nothing into its log."
        where = f"\nThe whole log: {self._log}" if self._log else ""
        with box:
            yield Static(self._lost.message, markup=False)
            yield Static(tail + where, classes="tail", markup=False)
            yield Static(
                "Conversation, trees and prompt are kept. enter starts another worker and loads "
                "the same models; esc closes, and ctrl+r restarts later.",
                classes="hint",
            )

    def action_restart(self) -> None:
        """Start another worker."""
        self.app.client.restart()
        self.dismiss()

"""Small dialogs: one question, one answer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static, TextArea

from dartree_core.errors import DARTreeError
from dartree_tui.settings import write_atomically
from dartree_tui.widgets.visible import visible

if TYPE_CHECKING:
    from dartree_tui.app import DartreeApp


class Dialog(ModalScreen[None]):
    """A box over the screen; escape closes it without effect."""

    DEFAULT_CSS = """
    Dialog { align: center middle; background: $background 60%; }
    Dialog > .box {
        width: 76; max-width: 100%; height: auto; max-height: 100%;
        background: $surface; border: round $primary; border-title-color: $foreground;
        padding: 0 1;
    }
    Dialog .hint { color: $dim; height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "close", id="close")]

    app: DartreeApp


class ExportScreen(Dialog):
    """Where to write the conversation."""

    _sure: Path | None = None

    def compose(self) -> ComposeResult:
        """A path, with a proposal in it."""
        title = self.app.client.said().title
        name = re.sub(r"[^\w-]+", "-", title.lower())[:40].strip("-") or "conversation"
        box = Vertical(classes="box")
        box.border_title = "export as Markdown"
        with box:
            yield Input(f"{name}.md", id="path")
            yield Static("enter writes the file, escape closes", classes="hint", markup=False)

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        hint = self.query_one(".hint", Static)
        try:
            path = Path(event.value).expanduser()
            if path.exists() and path != self._sure:
                self._sure = path
                hint.update(f"{path} exists. Press enter again to replace it.")
                return
            write_atomically(path, self.app.client.said().to_markdown())
        except (DARTreeError, OSError, RuntimeError, ValueError) as error:
            hint.update(visible(f"Nothing was written. {error}"))
            return
        self.notify(f"Wrote {path}", markup=False)
        self.dismiss()


class SystemPromptScreen(Dialog):
    """What stands before the conversation."""

    DEFAULT_CSS = "SystemPromptScreen TextArea { height: 8; border: none; background: $panel; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "keep", "keep", priority=True, id="system-prompt.keep")
    ]

    def compose(self) -> ComposeResult:
        """A text area and a hint."""
        box = Vertical(classes="box")
        box.border_title = "system prompt"
        with box:
            yield TextArea(
                self.app.client.conversation.system, soft_wrap=True, tab_behavior="focus"
            )
            yield Static(
                "ctrl+s keeps it, from the next turn on; escape closes. Empty leaves it to the "
                "model's own template.",
                classes="hint",
            )

    def action_keep(self) -> None:
        """Use it from the next turn on."""
        self.app.client.conversation.system = self.query_one(TextArea).text
        self.dismiss()

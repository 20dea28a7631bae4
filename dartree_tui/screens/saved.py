"""Saved conversations, to go on with."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from dartree_tui.conversation import Saved, conversations_path, saved
from dartree_tui.screens.dialogs import Dialog
from dartree_tui.widgets.visible import visible


class SavedScreen(Dialog):
    """A list; enter opens a conversation with its trees."""

    DEFAULT_CSS = """
    SavedScreen > .box { width: 84; height: 70%; }
    SavedScreen OptionList { height: 1fr; border: none; background: transparent; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._found: list[Saved] = list(saved())

    def compose(self) -> ComposeResult:
        """The list, or that there is none."""
        box = Vertical(classes="box")
        box.border_title = "saved conversations"
        with box:
            yield OptionList(*(Option(_entry(s), id=str(i)) for i, s in enumerate(self._found)))
            where = f"{conversations_path()}: nothing saved yet." if not self._found else ""
            yield Static(where or "enter opens, esc closes", classes="hint", markup=False)

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        if self.app.client.open(self._found[int(event.option.id or 0)]):
            self.dismiss()


def _entry(conversation: Saved) -> Content:
    about = f"{conversation.created}  {conversation.answers} answers"
    title = visible(conversation.title)
    return Content.assemble(title, "\n", (visible(about), "dim"))

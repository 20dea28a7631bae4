"""Find rounds: by a token's text, by why the tree lacked the bonus, the worst first."""

from __future__ import annotations

import typing
from itertools import islice
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Input, OptionList, Select, Static
from textual.widgets.option_list import Option

from dartree_core.glyphs import fit
from dartree_core.tree import BonusFate
from dartree_tui.screens.dialogs import Dialog

FATES: tuple[BonusFate, ...] = typing.get_args(BonusFate)
SHOWN = 500
"""Rounds listed; more would not be read."""


class FindScreen(Dialog):
    """A search over all rounds; enter jumps to one."""

    DEFAULT_CSS = """
    FindScreen > .box { width: 96; height: 80%; }
    FindScreen Horizontal { height: 1; }
    FindScreen Input { width: 1fr; }
    FindScreen Select { width: 26; margin: 0 1; }
    FindScreen #order { width: 16; margin: 0; }
    FindScreen OptionList { height: 1fr; border: none; background: transparent; }
    FindScreen.-narrow > .box { height: 100%; }
    FindScreen.-narrow > .box > Horizontal { layout: vertical; height: 3; }
    FindScreen.-narrow Select, FindScreen.-narrow #order { width: 1fr; margin: 0; }
    FindScreen.-narrow OptionList { text-wrap: nowrap; text-overflow: ellipsis; }
    """
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (70, "-wide")]  # noqa: RUF012 - declared by Screen
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "list", "list", show=False, id="find.list"),
    ]

    def compose(self) -> ComposeResult:
        """Criteria and what meets them."""
        box = Vertical(classes="box")
        box.border_title = "find rounds"
        with box:
            with Horizontal():
                yield Input(placeholder="a token's text; empty finds all", compact=True)
                yield Select(
                    [(f"bonus {fate.replace('_', ' ')}", fate) for fate in FATES],
                    prompt="any bonus fate",
                    compact=True,
                    id="fate",
                )
                yield Select(
                    [("in order", False), ("worst first", True)],
                    value=False,
                    allow_blank=False,
                    compact=True,
                    id="order",
                )
            yield Static("", classes="hint", id="count")
            yield OptionList()
            yield Static("enter jumps, down goes to the list, esc closes", classes="hint")

    def on_mount(self) -> None:
        """List all rounds."""
        self._search()

    @on(Input.Changed)
    @on(Select.Changed)
    def _search(self) -> None:
        store = self.app.client.store
        select = self.query_one("#fate", Select)
        fate = None if select.is_blank() else typing.cast(BonusFate, select.value)
        text = self.query_one(Input).value.replace("␣", " ")
        found = list(
            islice(store.find(text, fate, bool(self.query_one("#order", Select).value)), SHOWN + 1)
        )
        count = f"{len(found)} of {len(store.marks)} rounds"
        if len(found) > SHOWN:
            count = f"the first {SHOWN} of {len(store.marks)} rounds"
        self.query_one("#count", Static).update(count)
        options = self.query_one(OptionList)
        options.clear_options()
        options.add_options(Option(self._line(i), id=str(i)) for i in found[:SHOWN])
        if found:
            options.highlighted = 0

    def _line(self, index: int) -> Content:
        store = self.app.client.store
        mark = store.marks[index]
        shown = "".join(store.vocab.shown(t) for t in mark.emitted)
        fate = (mark.fate or "").replace("_", " ")
        return Content(
            f"{mark.turn + 1:>3}·{mark.number + 1:<5} accepted {mark.accepted:<2} "
            f"of {mark.verified:>3} nodes  {fate:<14} {fit(shown, 40)}"
        )

    def action_list(self) -> None:
        """From the criteria into the list."""
        self.query_one(OptionList).focus()

    @on(Input.Submitted)
    def _first(self) -> None:
        options = self.query_one(OptionList)
        if options.option_count and options.highlighted is not None:
            self._jump(int(options.get_option_at_index(options.highlighted).id or 0))

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        self._jump(int(event.option.id or 0))

    def _jump(self, index: int) -> None:
        self.app.main.go(index, find=self.query_one(Input).value)
        self.dismiss()

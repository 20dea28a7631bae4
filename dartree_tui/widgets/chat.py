"""The conversation on screen."""

from __future__ import annotations

from collections.abc import Mapping

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.selection import Selection
from textual.widget import Widget
from textual.widgets import Static

from dartree_tui.store import Store, Turn
from dartree_tui.widgets.answer import AnswerView
from dartree_tui.widgets.still import Still
from dartree_tui.widgets.visible import visible

KEEP_TURNS = 40
"""Turns kept as widgets; older ones stay in the store, the export and the timeline."""

WELCOME = (
    "A small drafter guesses a tree of continuations; the target model checks the whole tree in "
    "one pass and keeps the longest path it agrees with. The text is exactly what the target alone "
    "would have said.\n\n"
    "Type a question below. Each round's tree grows above while the answer is written here."
)


class ChatLog(VerticalScroll, Still, can_focus=True):
    """All turns of a store, the newest at the bottom."""

    BLANK = True

    DEFAULT_CSS = """
    ChatLog { padding: 0 1; scrollbar-size-vertical: 1; background: transparent; }
    ChatLog > .welcome, ChatLog > .earlier, ChatLog > .waiting { color: $dim; height: auto; }
    ChatLog > .waiting { padding: 0 0 1 0; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._views: list[AnswerView] = []
        self._store: Store | None = None
        self._stick = True
        self._marked: int | None = None

    def compose(self) -> ComposeResult:
        """What an empty conversation says, and where older turns went."""
        yield Static(WELCOME, classes="welcome", markup=False)
        yield Static("", classes="earlier", markup=False)
        yield Static("", classes="waiting", markup=False)

    def on_mount(self) -> None:
        """Nothing to report yet."""
        self.query_one(".earlier").display = False
        self.query_one(".waiting").display = False

    def view_of(self, turn: Turn) -> AnswerView | None:
        """The widget of a turn, while it is kept."""
        return next((v for v in self._views if v.turn is turn), None)

    def place_of(
        self, selected: str, selections: Mapping[Widget, Selection]
    ) -> tuple[Turn, int] | None:
        """The turn and the character where selected text begins, if an answer holds it.

        Args:
            selections: What is selected of each widget that the selection touches.
        """
        for view in self._views:
            for widget in view.query("*"):
                if widget in selections:
                    char = view.char_of_selection(selected, widget, selections[widget])
                    if char is not None:
                        return view.turn, char
        return None

    async def sync(
        self, store: Store, shade: bool, marked: int | None = None, waiting: str | None = None
    ) -> None:
        """Show the store's turns.

        Args:
            shade: Show answers as source, shaded by origin.
            marked: Index into the store's rounds of the one to mark.
            waiting: A question that has not been sent yet.
        """
        if store is not self._store:
            await self.query(AnswerView).remove()
            self._views.clear()
            self._store = store
            self.anchor(False)
        known = len(store.turns) and (self._views[-1].turn.index + 1 if self._views else 0)
        fresh = store.turns[max(known, len(store.turns) - KEEP_TURNS) :]
        if fresh:
            new = [AnswerView(turn) for turn in fresh]
            await self.mount_all(new, before=self.query_one(".waiting"))
            self._views += new
            self._stick = True
        await self._trim(len(store.turns))
        self.query_one(".welcome").display = not store.turns
        line = self.query_one(".waiting", Static)
        line.display = waiting is not None
        if waiting is not None:
            line.update(visible(f"waits for the model: {waiting}"))
        turn = store.turn_of(marked) if marked is not None else None
        for view in self._views:
            number = None
            if turn is view.turn and marked is not None:
                number = marked - view.turn.first_round
            await view.sync(shade, number)
        if marked is not None and marked != self._marked:
            self.anchor(False)
            self.call_after_refresh(self._reveal, store.turn_of(marked), marked)
        elif self._stick and marked is None:
            self._hold_bottom()
        self._marked = marked

    def _hold_bottom(self) -> None:
        """Show the end of the text, now and while it grows.

        An anchor moves with the layout, where scrolling afterwards would paint the pane twice;
        but it would push a text that does not fill the pane to the pane's bottom.
        """
        if self.is_anchored:
            return
        if self.max_scroll_y > 0:
            self.anchor()
        else:
            self.call_after_refresh(self.scroll_end, animate=False)

    def on_resize(self) -> None:
        """A text that fits again needs no anchor."""
        if self.max_scroll_y <= 0:
            self.anchor(False)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Stay at the bottom until someone scrolls up, and again once they are back."""
        super().watch_scroll_y(old_value, new_value)
        self._stick = new_value >= self.max_scroll_y - 1
        if not self._stick:
            self.anchor(False)

    async def _trim(self, turns: int) -> None:
        gone = self._views[:-KEEP_TURNS]
        if gone:
            del self._views[: len(gone)]
            for view in gone:
                await view.remove()
        hidden = turns - len(self._views)
        note = self.query_one(".earlier", Static)
        note.display = hidden > 0
        if hidden > 0:
            note.update(f"{hidden} earlier turns are in the timeline and in the export.")

    def _reveal(self, turn: Turn, marked: int) -> None:
        """Bring a round's text into sight."""
        view = self.view_of(turn)
        if view is not None:
            top = view.virtual_region.y + view.line_of(marked - turn.first_round)
            height = self.scrollable_content_region.height
            if not self.scroll_y <= top < self.scroll_y + height - 1:
                self.scroll_to(y=max(0, top - height // 3), animate=False)

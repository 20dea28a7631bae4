"""The screen one lives on: chat, the round's tree, the node, the numbers, all rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container, Horizontal, Vertical
from textual.widgets import ContentSwitcher, Footer, Static

from dartree_tui.screens.keys import MAIN_BINDINGS
from dartree_tui.screens.painting import Painter
from dartree_tui.screens.panes import MIN_HEIGHT, MIN_WIDTH, TITLES, PaneScreen
from dartree_tui.store import Store
from dartree_tui.viewpoint import Viewpoint
from dartree_tui.widgets.answer import CharacterChosen
from dartree_tui.widgets.chat import ChatLog
from dartree_tui.widgets.inspector import NodeInspector
from dartree_tui.widgets.prompt import Asked, Prompt
from dartree_tui.widgets.rounds import NODE_STATES, WORDS
from dartree_tui.widgets.stats import StatsPanel
from dartree_tui.widgets.status import StatusLine
from dartree_tui.widgets.timeline import RoundSelected, Timeline
from dartree_tui.widgets.tree_grid import TreeGrid
from dartree_tui.widgets.tree_outline import TreeOutline
from dartree_tui.widgets.tree_view import NodeSelected, TreeView

if TYPE_CHECKING:
    from dartree_tui.app import DartreeApp


class MainScreen(PaneScreen):
    """Layout and keys; what is shown comes from the store, which round from a `Viewpoint`."""

    BINDINGS: ClassVar[list[BindingType]] = list(MAIN_BINDINGS)

    app: DartreeApp

    def __init__(self) -> None:
        super().__init__()
        self._view = Viewpoint()
        self._viewed: Store | None = None
        self._filter = 0
        self._ready = False
        self.painter = Painter(self)

    # Layout

    def compose(self) -> ComposeResult:
        """All panes; the style sheet decides which are seen at which size."""
        yield StatusLine(id="status")
        yield Static(
            f"Too small.\nThis needs {MIN_WIDTH} × {MIN_HEIGHT} cells or more.\nctrl+q quits.",
            id="notice",
        )
        with (
            Container(id="tree-pane", classes="pane"),
            ContentSwitcher(initial=self.app.client.settings.ui.tree, id="tree"),
        ):
            yield TreeGrid(id="grid")
            yield TreeOutline(id="outline")
        yield Timeline(id="timeline")
        with Horizontal(id="lower"):
            with Container(id="chat-pane", classes="pane"):
                yield ChatLog(id="chat")
            with Vertical(id="side"):
                with Container(id="node-pane", classes="pane"):
                    yield NodeInspector(id="node")
                with Container(id="stats-pane", classes="pane"):
                    yield StatsPanel(id="stats")
        yield Prompt(self.app.history, id="prompt")
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        """Titles, focus, and the first arrangement."""
        self._ready = True
        for pane, title in TITLES.items():
            self.query_one(f"#{pane}-pane").border_title = title
        if self.app.client.engine.live:
            self.prompt.focus()
        else:
            self.prompt.display = False
            self.drawing.focus()
        self._arrange()

    @property
    def view(self) -> Viewpoint:
        """Where one looks. It ends with its store: a place in that means nothing in another."""
        store = self.app.client.store
        if store is not self._viewed:
            self._view, self._viewed = Viewpoint(), store
        return self._view

    @property
    def prompt(self) -> Prompt:
        """The input."""
        return self.query_one("#prompt", Prompt)

    @property
    def drawing(self) -> TreeView:
        """The drawing on show, grid or outline."""
        name = self.query_one("#tree", ContentSwitcher).current
        return self.query_one(f"#{name}", TreeView)

    @property
    def tree_kind(self) -> str:
        """`grid` or `outline`."""
        return str(self.query_one("#tree", ContentSwitcher).current)

    @property
    def painted(self) -> bool:
        """True once something has been drawn."""
        return self._ready and self.painter.began

    @property
    def wanted(self) -> bool:
        """True when the user did something that the next frame should show."""
        return self.painter.stale or not self.view.following

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Nothing but quitting while nothing can be seen."""
        return not self.too_small

    def on_resize(self, event: events.Resize) -> None:
        """Panes depend on the size."""
        self._arrange()

    def arranged(self) -> None:
        """Other panes are seen."""
        self.refresh_all()

    def focus_tree(self) -> None:
        """The tree got the room."""
        self.drawing.focus()

    async def paint(self) -> None:
        """Draw what changed. Called at the app's beat."""
        if self._ready:
            await self.painter.paint()

    # What happens

    @on(Asked)
    def _asked(self, event: Asked) -> None:
        self.view.follow()
        if self.app.client.ask(event.text):
            event.prompt.sent(event.text)
        self.painter.stale = True

    @on(NodeSelected)
    def _node_selected(self, event: NodeSelected) -> None:
        if self.view.following and self.app.client.store.generating:
            self.view.freeze(self.app.client.store)
        self.painter.draw_node(self.view.shown[1])

    @on(RoundSelected)
    def _round_selected(self, event: RoundSelected) -> None:
        self._go(event.index)

    @on(CharacterChosen)
    def _character_chosen(self, event: CharacterChosen) -> None:
        if self.get_selected_text():
            return  # that was a selection, for copying
        index = self.app.client.store.round_at(event.turn, event.char)
        if index is None:
            self.notify("The prefill wrote that, before the first round.")
        else:
            self._go(index)

    def _go(self, index: int) -> None:
        self.view.playing = False
        self.view.go(self.app.client.store, index)
        self.painter.stale = True

    def go(self, index: int, find: str = "") -> None:
        """Show a round; with `find`, select the first of its tokens that contains it."""
        self._go(index)
        if find:
            store = self.app.client.store
            self.drawing.show_round(self.view.show(store)[1], store.vocab)
            self.drawing.find(find)
            self.drawing.focus()

    def restore(self) -> None:
        """Put an unsent question back into the prompt."""
        client = self.app.client
        if client.unsent is not None:
            self.prompt.put_back(client.unsent)
            client.unsent = None

    def tick(self, seconds: float) -> None:
        """Time passed."""
        if self.view.tick(self.app.client.store, seconds):
            self.painter.stale = True

    def refresh_all(self) -> None:
        """Draw everything anew at the next tick."""
        self.painter.forget()

    # Keys: time

    def action_pause(self) -> None:
        """Freeze or thaw the view while something decodes; otherwise play and stop."""
        store = self.app.client.store
        if store.generating:
            if self.view.following:
                self.view.freeze(store)
            else:
                self.view.follow()
        elif self.view.playing:
            self.view.playing = False
        else:
            self.view.play(store)
        self.painter.stale = True

    def action_follow(self) -> None:
        """Show the newest round again."""
        self.view.follow()
        self.painter.stale = True

    def action_round(self, by: int) -> None:
        """Go some rounds on or back."""
        store = self.app.client.store
        if store.marks:
            self.view.playing = False
            here = len(store.marks) - 1 if self.view.at is None else self.view.at
            self._go(max(0, min(here + by, len(store.marks) - 1)))

    def action_turn(self, by: int) -> None:
        """Go to a neighbouring turn."""
        store = self.app.client.store
        self.view.turn(store, by)
        if self.view.at is not None:
            self._go(self.view.at)

    def action_step_mode(self) -> None:
        """Hold the decoder, or let it run."""
        client = self.app.client
        if not client.engine.live:
            self.notify("A replay has no decoder to hold; n steps through the recorded rounds.")
            return
        client.step_mode(not client.stepping)
        if client.stepping:
            self.view.follow()
        self.painter.stale = True

    def action_step(self, by: Literal["stage", "round"]) -> None:
        """Advance: the held decoder, or the view where nothing decodes."""
        client = self.app.client
        if client.store.generating and client.engine.live:
            self.view.follow()
            if not client.stepping:
                client.step_mode(True)
            client.step(by)
        elif by == "stage":
            self.view.next_stage(client.store)
        else:
            self.action_round(1)
        self.painter.stale = True

    def action_worst(self) -> None:
        """Go to the next of the rounds that accepted least."""
        self.query_one(Timeline).action_worst(1)

    # Keys: panes

    def action_outline(self) -> None:
        """Draw the tree as a grid or as an outline."""
        switcher = self.query_one("#tree", ContentSwitcher)
        node = self.drawing.node
        focused = self.drawing.has_focus
        switcher.current = "outline" if switcher.current == "grid" else "grid"
        self.drawing.show_round(
            self.view.show(self.app.client.store)[1], self.app.client.store.vocab
        )
        self.drawing.select(node, notify=False)
        if focused:
            self.drawing.focus()
        self.painter.stale = True

    def action_states(self) -> None:
        """Keep one node state bright, the next at each press, then all again."""
        self._filter = (self._filter + 1) % (len(NODE_STATES) + 1)
        chosen = None if self._filter == 0 else {NODE_STATES[self._filter - 1]}
        for tree in self.query(TreeView):
            tree.filter(chosen)
        words = "all nodes" if chosen is None else WORDS[NODE_STATES[self._filter - 1]]
        self.query_one("#tree-pane").border_subtitle = "" if chosen is None else f"only {words}"

    def action_type(self) -> None:
        """Go to the prompt."""
        if self.app.client.engine.live:
            self.prompt.focus()

    def action_escape(self) -> None:
        """Stop what runs; otherwise leave the prompt, or come back to it."""
        if self._whole is not None:
            self.action_whole()
        elif self.app.client.stop():
            self.restore()
        elif self.prompt.has_focus:
            self.drawing.focus()
        elif not self.view.following and self.app.client.engine.live:
            self.action_follow()
        else:
            self.action_type()

    # Keys: text

    def action_provenance(self) -> None:
        """Shade answers by where their tokens came from."""
        client = self.app.client
        shade = not client.settings.ui.provenance
        client.settings = client.settings.changed("ui", provenance=shade)
        legend = "italic prefill · plain tree · underlined bonus"
        self.query_one("#chat-pane").border_subtitle = legend if shade else ""
        self.painter.stale = True

    def action_selection_round(self) -> None:
        """Go to the round that wrote the selected text."""
        selected = self.get_selected_text()
        if not selected:
            self.notify("Select a piece of an answer with the mouse first, or click a word.")
            return
        place = self.query_one(ChatLog).place_of(selected, self.selections)
        index = None if place is None else self.app.client.store.round_at(*place)
        if index is not None:
            self.clear_selection()
            self._go(index)
            return
        self.notify("No round wrote that: it is not part of an answer, or the prefill wrote it.")

"""The screen one lives on: chat, the round's tree, the node, the numbers, all rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container, Horizontal, Vertical
from textual.content import Content
from textual.widgets import ContentSwitcher, Footer, Static

from dartree_tui.parts import ALL, Part, Parts
from dartree_tui.screens.keys import MAIN_BINDINGS
from dartree_tui.screens.panes import MIN_HEIGHT, MIN_WIDTH, TITLES, PaneScreen
from dartree_tui.status import Situation, situation
from dartree_tui.store import AnyRound, Store
from dartree_tui.viewpoint import Viewpoint
from dartree_tui.widgets.answer import CharacterChosen
from dartree_tui.widgets.chat import ChatLog
from dartree_tui.widgets.explain import headline
from dartree_tui.widgets.inspector import NodeInspector
from dartree_tui.widgets.prompt import Asked, Prompt
from dartree_tui.widgets.rounds import NODE_STATES, WORDS
from dartree_tui.widgets.stats import StatsPanel
from dartree_tui.widgets.status import StatusLine, models_line, settings_line
from dartree_tui.widgets.timeline import RoundSelected, Timeline
from dartree_tui.widgets.tree_grid import TreeGrid
from dartree_tui.widgets.tree_outline import TreeOutline
from dartree_tui.widgets.tree_view import NodeSelected, TreeView
from dartree_tui.widgets.visible import visible

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
        self._told: tuple[object, ...] = ()
        self._drawn: tuple[object, ...] = ()
        self._places: dict[Part, tuple[object, ...]] = {}
        self._filter = 0
        self._title = ""
        self._dirty = True
        self._ready = False
        self._painted = False
        self._parts = Parts()

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
        return self._ready and self._painted

    @property
    def wanted(self) -> bool:
        """True when the user did something that the next frame should show."""
        return self._dirty or not self.view.following

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

    # Painting

    async def paint(self) -> None:
        """Draw what changed. Called by the app's timer."""
        client, view = self.app.client, self.view
        if not self._ready:
            return
        self._painted = True
        if self.too_small:
            return
        now = situation(client, view)
        self._status(now)
        state = (client.store, client.store.version, view.at, view.frame, client.waiting)
        if view.frozen and not self._dirty and state[2:4] == self._drawn[2:4]:
            return
        if state == self._drawn and not self._dirty:
            return
        wanted = self._dirty
        self._drawn, self._dirty = state, False
        index, round_ = view.show(client.store)
        if view.following and client.store.partial is not None:
            self._drawn = ()  # what was shown may not be the newest yet
        live = view.following and client.store.generating
        parts = ALL if wanted else self._parts.next(live, self.app.pace.tight)
        self._draw_round(index, round_, parts)
        if parts != ALL:
            self._drawn = ()
        if Part.TEXT not in parts:
            return
        if self.app.behind:
            self._dirty = True  # the text of a long trace is written once, when all of it is here
            return
        marked = index if view.at is not None else None
        await self.query_one(ChatLog).sync(
            client.store, client.settings.ui.provenance, marked, client.waiting
        )

    def _draw_round(self, index: int, round_: AnyRound | None, parts: Part) -> None:
        store = self.app.client.store
        if Part.TREE in parts:
            self.drawing.show_round(round_, store.vocab)
        # A round that grows changes the tree, but no number yet.
        place = (store, index, len(store.marks), store.baseline)
        stale = {part for part in parts if self._places.get(part) != place}
        self._places |= dict.fromkeys(parts, place)
        if Part.ROUNDS in stale:
            heights = store.heights
            slots = dict(self.app.client.models.get("drafter") or {}).get("num_slots", 0)
            highest = max(slots, max(heights[-2000:], default=1))
            self.query_one(Timeline).show(heights, index, highest)
        if Part.ROUNDS in parts:
            self._draw_title(round_)
        if Part.FIGURES in stale:
            self.query_one(StatsPanel).show(store.stats(index if index >= 0 else None))
        if Part.FIGURES in parts:
            self._draw_node(round_)

    def _draw_title(self, round_: AnyRound | None) -> None:
        pane = self.query_one("#tree-pane")
        if round_ is None:
            self._title = pane.border_title = "tree"
            return
        title = f"round {round_.round + 1}   {headline(round_, self.app.client.store.vocab)}"
        if title != self._title:  # a new title repaints all of the pane
            self._title = title
            pane.border_title = Content(visible(title))

    def _draw_node(self, round_: AnyRound | None) -> None:
        node = self.drawing.node
        self.query_one(NodeInspector).show(round_, node, self.app.client.store.vocab)

    def _status(self, now: Situation) -> None:
        client = self.app.client
        turn = client.store.turn
        recorded = turn.config if turn is not None and not client.engine.live else None
        config = client.config if recorded is None else recorded
        told = (now, config, client.models, self.size)
        if told == self._told and not self._dirty:
            return
        self._told = told
        shown = client.config.to_dict() if recorded is None else recorded
        self.query_one(StatusLine).show(
            models_line(client.models), settings_line(shown), now.text, now.marker
        )

    # What happens

    @on(Asked)
    def _asked(self, event: Asked) -> None:
        self.view.follow()
        if self.app.client.ask(event.text):
            event.prompt.sent(event.text)
        self._dirty = True

    @on(NodeSelected)
    def _node_selected(self, event: NodeSelected) -> None:
        if self.view.following and self.app.client.store.generating:
            self.view.freeze(self.app.client.store)
        self._draw_node(self.view.shown[1])

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
        self._dirty = True

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
            self._dirty = True

    def refresh_all(self) -> None:
        """Draw everything anew at the next tick."""
        self._dirty = True
        self._places.clear()

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
        self._dirty = True

    def action_follow(self) -> None:
        """Show the newest round again."""
        self.view.follow()
        self._dirty = True

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
        self._dirty = True

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
        self._dirty = True

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
        self._dirty = True

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
        self._dirty = True

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

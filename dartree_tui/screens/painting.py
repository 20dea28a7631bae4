"""What is drawn of the store and the round one looks at, pane by pane, when it changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.content import Content

from dartree_tui.parts import ALL, Part, Parts
from dartree_tui.status import Situation, situation
from dartree_tui.store import AnyRound
from dartree_tui.widgets.chat import ChatLog
from dartree_tui.widgets.explain import headline
from dartree_tui.widgets.inspector import NodeInspector
from dartree_tui.widgets.stats import StatsPanel
from dartree_tui.widgets.status import StatusLine, models_line, settings_line
from dartree_tui.widgets.timeline import Timeline
from dartree_tui.widgets.visible import visible

if TYPE_CHECKING:
    from dartree_tui.screens.main import MainScreen


class Painter:
    """Draws the main screen's panes.

    Args:
        screen: Whose panes.

    Attributes:
        stale: Set by whoever changes what is to be seen; until the next frame.
        began: True once something has been drawn.
    """

    def __init__(self, screen: MainScreen) -> None:
        self.stale = True
        self.began = False
        self._screen = screen
        self._told: tuple[object, ...] = ()
        self._drawn: tuple[object, ...] = ()
        self._places: dict[Part, tuple[object, ...]] = {}
        self._title = ""
        self._parts = Parts()

    def forget(self) -> None:
        """Draw everything anew, whether it changed or not."""
        self.stale = True
        self._places.clear()

    async def paint(self) -> None:
        """Draw what changed."""
        screen, app = self._screen, self._screen.app
        client, view = app.client, screen.view
        self.began = True
        if screen.too_small:
            return
        self._status(situation(client, view))
        state = (client.store, client.store.version, view.at, view.frame, client.waiting)
        if view.frozen and not self.stale and state[2:4] == self._drawn[2:4]:
            return
        if state == self._drawn and not self.stale:
            return
        wanted = self.stale
        self._drawn, self.stale = state, False
        index, round_ = view.show(client.store)
        if view.following and client.store.partial is not None:
            self._drawn = ()  # what was shown may not be the newest yet
        live = view.following and client.store.generating
        parts = ALL if wanted else self._parts.next(live, app.beat.pace.tight)
        self._draw_round(index, round_, parts)
        if parts != ALL:
            self._drawn = ()
        if Part.TEXT not in parts:
            return
        if app.beat.behind:
            self.stale = True  # the text of a long trace is written once, when all of it is here
            return
        marked = index if view.at is not None else None
        await screen.query_one(ChatLog).sync(
            client.store, client.settings.ui.provenance, marked, client.waiting
        )

    def _draw_round(self, index: int, round_: AnyRound | None, parts: Part) -> None:
        screen = self._screen
        store, models = screen.app.client.store, screen.app.client.models
        if Part.TREE in parts:
            screen.drawing.show_round(round_, store.vocab)
        # A round that grows changes the tree, but no number yet.
        place = (store, index, len(store.marks), store.baseline)
        changed = {part for part in parts if self._places.get(part) != place}
        self._places |= dict.fromkeys(parts, place)
        if Part.ROUNDS in changed:
            heights = store.heights
            slots = dict(models.get("drafter") or {}).get("num_slots", 0)
            highest = max(slots, max(heights[-2000:], default=1))
            screen.query_one(Timeline).show(heights, index, highest)
        if Part.ROUNDS in parts:
            self._draw_title(round_)
        if Part.FIGURES in changed:
            screen.query_one(StatsPanel).show(store.stats(index if index >= 0 else None))
        if Part.FIGURES in parts:
            self.draw_node(round_)

    def _draw_title(self, round_: AnyRound | None) -> None:
        pane = self._screen.query_one("#tree-pane")
        if round_ is None:
            self._title = pane.border_title = "tree"
            return
        vocab = self._screen.app.client.store.vocab
        title = f"round {round_.round + 1}   {headline(round_, vocab)}"
        if title != self._title:  # a new title repaints all of the pane
            self._title = title
            pane.border_title = Content(visible(title))

    def draw_node(self, round_: AnyRound | None) -> None:
        """Tell about the selected node of a round."""
        node, vocab = self._screen.drawing.node, self._screen.app.client.store.vocab
        self._screen.query_one(NodeInspector).show(round_, node, vocab)

    def _status(self, now: Situation) -> None:
        client = self._screen.app.client
        turn = client.store.turn
        recorded = turn.config if turn is not None and not client.engine.live else None
        config = client.config if recorded is None else recorded
        told = (now, config, client.models, self._screen.size)
        if told == self._told and not self.stale:
            return
        self._told = told
        shown = client.config.to_dict() if recorded is None else recorded
        self._screen.query_one(StatusLine).show(
            models_line(client.models), settings_line(shown), now.text, now.marker
        )

"""One question and its answer in the chat: as Markdown, or as source shaded by origin."""

from __future__ import annotations

from dataclasses import dataclass

from rich.style import Style
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.geometry import Offset
from textual.message import Message
from textual.selection import Selection
from textual.widget import Widget
from textual.widgets import Markdown, Static
from textual.widgets._markdown import MarkdownBlock

from dartree_tui.palette import Palette
from dartree_tui.places import place_in_source
from dartree_tui.store import Turn
from dartree_tui.widgets.figures import amount
from dartree_tui.widgets.still import Still, StillLine, StillMarkdown, StillText
from dartree_tui.widgets.visible import visible

REASONS = {
    "eos": "",
    "stop_string": "stop string",
    "length": "length limit reached",
    "cancelled": "stopped",
    "error": "failed",
}

WINDOW = 6000
"""Characters of an answer shown as source at a time."""

_DECORATION = {"prefill": Style(italic=True), "draft": Style(), "bonus": Style(underline=True)}
"""Beside the colour, so that origin can be told without it."""


@dataclass
class CharacterChosen(Message):
    """A place in an answer was clicked.

    Attributes:
        turn: The turn.
        char: Character offset in its text.
    """

    turn: Turn
    char: int


class SourceView(StillText):
    """The answer's own text, each piece shaded by where it came from.

    Of a very long answer only a window is shown, around the marked round or at the end.

    Attributes:
        first: Offset in the answer of the first character shown.
    """

    def __init__(self) -> None:
        super().__init__("", markup=False)
        self.first = 0
        self._shown: tuple[object, ...] = ()

    def show(self, turn: Turn, round_: int | None) -> None:
        """Show the answer so far.

        Args:
            round_: Index within the turn of a round to mark; -1 for prefill, None for none.
        """
        palette = Palette.of(self.app)
        state = (len(turn.text), round_, palette)
        if state != self._shown:
            self._shown = state
            self.first, last = window(turn, round_)
            self.update(shaded(turn, palette, round_, self.first, last))


def window(turn: Turn, round_: int | None) -> tuple[int, int]:
    """The characters worth showing: all, or `WINDOW` of them from the start of a line."""
    length = len(turn.text)
    if length <= WINDOW:
        return 0, length
    middle = length
    if round_ is not None:
        middle = next((p.start for p in turn.pieces if p.round == round_), length)
    first = max(0, min(middle - WINDOW // 2, length - WINDOW))
    first = turn.text.rfind("\n", max(0, first - WINDOW // 4), first) + 1 or first
    return first, min(length, first + WINDOW)


def shaded(turn: Turn, palette: Palette, round_: int | None, first: int, last: int) -> Text:
    """Characters `first` to `last` of an answer, shaded, with one round marked."""
    out = Text(style=palette.text)
    text = visible(turn.text[first:last])
    end = first
    for piece in turn.pieces:
        if piece.end <= first or piece.start >= last:
            continue
        style = palette.provenance[piece.source] + _DECORATION[piece.source]
        if round_ is not None and piece.round == round_:
            style += palette.cursor
        end = min(piece.end, last)
        out.append(text[max(piece.start - first, 0) : end - first], style)
    out.append(text[end - first :], palette.text)
    if last < len(turn.text):
        out.append(" …", palette.dim)
    return out


class AnswerView(Vertical, Still):
    """A turn in the chat. `sync` brings it up to date."""

    BLANK = True

    DEFAULT_CSS = """
    AnswerView { height: auto; margin: 0 0 1 0; }
    AnswerView .who { width: 5; color: $dim; text-style: bold; }
    AnswerView .line { height: auto; }
    AnswerView .said { width: 1fr; height: auto; }
    AnswerView .you { color: $secondary; }
    AnswerView Markdown {
        width: 1fr; height: auto; margin: 0; padding: 0; background: transparent;
    }
    AnswerView Markdown > * { margin: 1 0 0 0; }
    AnswerView SourceView { width: 1fr; height: auto; }
    AnswerView .facts { color: $dim; padding: 0 0 0 5; height: auto; }
    AnswerView.-replaced .said, AnswerView.-replaced Markdown { opacity: 60%; }
    """

    def __init__(self, turn: Turn) -> None:
        super().__init__()
        self.turn = turn
        self._written = 0
        self._settled = False
        self._facts = ""
        self._state: tuple[object, ...] = ()

    def compose(self) -> ComposeResult:
        """Question, answer twice over, facts."""
        fresh = self.turn.continues is None
        if fresh:
            with StillLine(classes="line"):
                yield StillText("you", classes="who")
                yield StillText(visible(self.turn.prompt), classes="said you", markup=False)
        with StillLine(classes="line"):
            yield StillText("ai" if fresh else "…", classes="who")
            yield StillMarkdown()
            yield SourceView()
        yield StillText("", classes="facts", markup=False)

    async def sync(self, shade: bool, round_: int | None) -> None:
        """Show what has come since.

        Args:
            shade: Show the source, shaded by origin.
            round_: Index within the turn of the round to mark, or None; also shows the source.
        """
        turn = self.turn
        state = (len(turn.text), turn.over, turn.replaced, turn.prefill is None, shade, round_)
        if state == self._state:
            return
        self._state = state
        markdown, source = self.query_one(Markdown), self.query_one(SourceView)
        as_source = shade or round_ is not None
        markdown.display, source.display = not as_source, as_source
        if as_source:
            source.show(turn, round_)
        if not self._settled:
            await self._write(markdown)
        self.set_class(turn.replaced, "-replaced")
        facts = visible(facts_of(turn))
        if facts != self._facts:
            self._facts = facts
            line = self.query_one(".facts", Static)
            line.update(facts)
            line.display = bool(facts)

    async def _write(self, markdown: Markdown) -> None:
        text = self.turn.text
        if self.turn.over:
            self._settled = True
            # A fence that was open while streaming may have swallowed what follows it.
            await markdown.update(visible(text))
        elif len(text) > self._written:
            # Not by a stream of Textual's: its task would write after the frame it belongs to.
            await markdown.append(visible(text[self._written :]))
        self._written = len(text)
        # By a rule about first children, each new block would have all of them styled again.
        for block in markdown.children[:1]:
            block.styles.margin = 0

    def line_of(self, round_: int) -> int:
        """The view's line on which a round's text begins, while the source is shown."""
        source = self.query_one(SourceView)
        start = next((p.start for p in self.turn.pieces if p.round == round_), 0)
        width = max(1, source.size.width)
        text = visible(self.turn.text[source.first : start])
        before = Text(text + ".").wrap(self.app.console, width)
        return source.region.y - self.region.y + len(before) - 1

    def on_click(self, event: events.Click) -> None:
        """Find the character that was clicked."""
        widget, offset = self.screen.get_widget_and_offset_at(event.screen_x, event.screen_y)
        if widget is None or offset is None:
            return
        char = self._char_at(widget, offset.x, offset.y)
        if char is not None:
            self.post_message(CharacterChosen(self.turn, char))

    def char_of_selection(self, selected: str, widget: Widget, selection: Selection) -> int | None:
        """Where a selected piece of the answer begins in its source; None where it is no part.

        Args:
            selected: All that is selected.
            widget: The first widget the selection touches.
            selection: What of that widget is selected.
        """
        if not any(isinstance(w, Markdown | SourceView) for w in widget.ancestors_with_self):
            return None
        start = selection.start or Offset(0, 0)
        for x in (start.x, start.x + 1):  # it may begin with a blank, which is no word
            found = self._char_at(widget, x, start.y)
            if found is not None:
                return found
        words, text = selected.strip(), visible(self.turn.text)
        found = text.find(words) if words else -1
        return found if found >= 0 else None

    def _char_at(self, widget: Widget, x: int, y: int) -> int | None:
        text = visible(self.turn.text)
        if isinstance(widget, SourceView):
            lines = text[widget.first :].split("\n")
            if y >= len(lines):
                return None
            before = sum(len(line) + 1 for line in lines[:y])
            return widget.first + before + min(x, len(lines[y]))
        block = next((w for w in widget.ancestors_with_self if isinstance(w, MarkdownBlock)), None)
        if block is None:
            return None
        shown = block._content.plain.split("\n")
        if y >= len(shown):
            return None
        head = "\n".join([*shown[:y], shown[y][:x]])
        return place_in_source(text, block.source_range, head, shown[y][x:])


def facts_of(turn: Turn) -> str:
    """The line below an answer: how it went."""
    parts: list[str] = []
    if turn.failed is not None:
        parts = ["failed: " + turn.failed.message, turn.failed.remedy]
    elif turn.finished is not None and turn.rounds:
        summary = turn.metrics.summary()
        tau = summary["mean_acceptance_length"]
        speed = summary["tokens_per_second"]
        parts = [
            REASONS[turn.finished.reason],
            f"{summary['num_emitted_tokens']} tokens in {turn.rounds} rounds",
            f"τ {tau:.2f}" if tau else "",
            f"{amount(speed)} tokens/s" if speed else "",
            "asked again below" if turn.replaced else "",
        ]
    elif turn.finished is not None:
        parts = [REASONS[turn.finished.reason]]
    elif turn.prefill is None:
        parts = ["reading the prompt …"]
    return "  ·  ".join(filter(None, parts))

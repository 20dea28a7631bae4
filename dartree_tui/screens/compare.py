"""The same prompt through two settings, side by side, aligned by position."""

from __future__ import annotations

import typing
from typing import TYPE_CHECKING, Any, ClassVar

from rich.cells import cell_len, chop_cells
from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer, Input, Select, Static

from dartree_core.config import DecodeConfig, Method
from dartree_core.errors import ConfigError
from dartree_core.glyphs import fit
from dartree_tui.compare import Comparison, Side
from dartree_tui.palette import Palette
from dartree_tui.settings import options, parse_value
from dartree_tui.widgets.figures import amount
from dartree_tui.widgets.visible import on_lines, one_line, typeable, visible

if TYPE_CHECKING:
    from dartree_tui.app import DartreeApp

TABLE_WIDTH = 60
"""Cells from which on two columns are readable beside each other."""

_FIELDS = ("budget", "width", "depth_bonus", "temperature", "seed", "max_new_tokens")


class OneLine(Input):
    """A text of any number of lines in one: pictures stand for its line breaks and controls."""

    def __init__(self, text: str, *, id: str, placeholder: str) -> None:
        self._given, self._shown = text, one_line(text)
        super().__init__(self._shown, id=id, placeholder=placeholder, compact=True)

    @property
    def text(self) -> str:
        """What was given, to the letter, until somebody changes it."""
        return self._given if self.value == self._shown else on_lines(self.value)

    def _on_paste(self, event: events.Paste) -> None:
        event.text = one_line(typeable(event.text).strip("\n"))


class CompareScreen(Screen[None]):
    """Two columns of settings above one table of what they did.

    A small screen shows either: the settings below each other, or, from the start on, the result.
    """

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (80, "-wide")]  # noqa: RUF012 - declared by Screen
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (20, "-high")]  # noqa: RUF012 - declared by Screen

    DEFAULT_CSS = """
    CompareScreen { background: $background; }
    CompareScreen #ask { height: 1; margin: 0 1; }
    CompareScreen #ask .label { width: 8; }
    CompareScreen .label { color: $dim; width: 16; }
    CompareScreen #ask Input { width: 1fr; }
    CompareScreen #sides { height: auto; }
    CompareScreen .side {
        width: 1fr; height: auto; border: round $panel; border-title-color: $dim; padding: 0 1; }
    CompareScreen .side:focus-within { border: round $primary; }
    CompareScreen .row { height: 1; }
    CompareScreen .row Input, CompareScreen .row Select { width: 20; }
    CompareScreen #verdict { height: auto; margin: 0 2; }
    CompareScreen #table { height: 1fr; padding: 0 2; scrollbar-size-vertical: 1; }
    CompareScreen #table Static { height: auto; }
    CompareScreen.-tiny #title { display: none; }
    CompareScreen.-narrow #sides {
        layout: vertical; height: 1fr; overflow-y: auto; scrollbar-size-vertical: 1; }
    CompareScreen.-narrow .row Input, CompareScreen.-narrow .row Select { width: 1fr; }
    CompareScreen.-narrow.-result #sides, CompareScreen.-tiny.-result #sides,
    CompareScreen.-narrow #verdict, CompareScreen.-tiny #verdict,
    CompareScreen.-narrow #table, CompareScreen.-tiny #table { display: none; }
    CompareScreen.-result #verdict, CompareScreen.-result #table { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "back", id="compare.back"),
        Binding("ctrl+r", "run", "run", priority=True, id="compare.run"),
        Binding("f6", "fold", "sides", id="compare.fold", tooltip="settings or result"),
    ]

    app: DartreeApp

    def __init__(self) -> None:
        super().__init__()
        self._drawn: tuple[object, ...] = ()

    def compose(self) -> ComposeResult:
        """Prompt, settings, verdict, table."""
        yield Static(" compare   the same prompt, two ways", id="title")
        with Horizontal(id="ask"):
            yield Static("prompt", classes="label")
            yield OneLine(self._proposal(), id="prompt", placeholder="enter runs both")
        config = self.app.client.settings.decode
        with Horizontal(id="sides"):
            for side, method in (("left", config.method), ("right", self._other())):
                with Vertical(classes="side", id=side) as column:
                    column.border_title = "A" if side == "left" else "B"
                    with Horizontal(classes="row"):
                        yield Static("method", classes="label")
                        yield Select(
                            [(m, m) for m in typing.get_args(Method)],
                            value=method,
                            allow_blank=False,
                            compact=True,
                            id=f"{side}-method",
                        )
                    for name in _FIELDS:
                        with Horizontal(classes="row"):
                            yield Static(name.replace("_", " "), classes="label")
                            value = getattr(config, name)
                            if value == "model":
                                value = getattr(self.app.client.config.sampling, name)
                            yield Input(str(value), compact=True, id=f"{side}-{name}")
        yield Static("", id="verdict")
        with VerticalScroll(id="table"):
            yield Static("")
        yield Footer(compact=True, show_command_palette=False)

    def _proposal(self) -> str:
        turn = self.app.client.store.turn
        comparison = self.app.client.comparison
        return comparison.prompt if comparison else turn.prompt if turn else ""

    def _other(self) -> str:
        return "ar" if self.app.client.settings.decode.method != "ar" else "dartree"

    def on_mount(self) -> None:
        """Start at the prompt."""
        self.set_class(self.app.client.comparison is not None, "-result")
        self.query_one("#prompt").focus()

    @property
    def small(self) -> bool:
        """True when settings and result do not fit together."""
        return self.has_class("-narrow") or self.has_class("-tiny")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Folding is for small screens."""
        return self.small or action != "fold"

    def on_resize(self) -> None:
        """The footer names what can be done at this size."""
        self.refresh_bindings()

    def action_fold(self) -> None:
        """Show the settings in place of the result, or the result again."""
        self.toggle_class("-result")
        seen = self.query_one("#table" if self.has_class("-result") else "#left-method")
        self.call_after_refresh(seen.focus)

    def _config(self, side: str) -> DecodeConfig:
        changes: dict[str, Any] = {"method": self.query_one(f"#{side}-method", Select).value}
        hints = {f.name: hint for section, f, hint in options() if section == "decode"}
        for name in _FIELDS:
            text = self.query_one(f"#{side}-{name}", Input).value.strip()
            changes[name] = parse_value(text, hints[name], name.replace("_", " "))
        changes = {name: value for name, value in changes.items() if value != "model"}
        base = self.app.client.config  # holds what the model asks for
        return base.with_changes(**changes, stages=False, detail="basic")

    @on(Input.Submitted)
    def action_run(self) -> None:
        """Decode both sides."""
        prompt = self.query_one(OneLine).text.strip()
        if not prompt:
            self.notify("Type a prompt first.")
            return
        try:
            left, right = self._config("left"), self._config("right")
        except ConfigError as error:
            self.notify(str(error), severity="error", markup=False)
            return
        if self.app.client.compare(prompt, left, right):
            self._drawn = ()
            self.query_one("#table Static", Static).update("")
            self.add_class("-result")
            if self.small:
                self.query_one("#table").focus()

    def action_back(self) -> None:
        """Stop what runs here, then go back."""
        if self.app.client.status == "comparing":
            self.app.client.stop()
        else:
            self.dismiss()

    async def paint(self) -> None:
        """Draw what changed; the table once all is there, since drawing slows what is measured."""
        comparison = self.app.client.comparison
        if comparison is None:
            return
        versions = tuple(side.store.version for side in comparison.sides)
        state = (comparison, *versions, comparison.over, self.size)
        if state == self._drawn:
            return
        self._drawn = state
        palette = Palette.of(self.app)
        room = self.size.width - 4
        self.query_one("#verdict", Static).update(verdict(comparison, palette, room))
        if not comparison.over:
            return
        draw = table if room >= TABLE_WIDTH else stacked
        text, parting = draw(comparison, palette, room - 2)
        self.query_one("#table Static", Static).update(text)
        if parting:
            self.call_after_refresh(
                self.query_one("#table").scroll_to, y=parting - 1, animate=False
            )


def verdict(comparison: Comparison, palette: Palette, width: int) -> Text:
    """Rounds, time and speed of both, and the difference in words."""
    out = Text(style=palette.text)
    for name, side in zip("AB", comparison.sides, strict=True):
        out.append(f"{name}  ", palette.accent)
        room = width - 3
        if side.error:
            out.append(f"{side.config.method:<14}", palette.text)
            out.append(visible(side.error) + "\n", palette.warning)
        else:
            out.append(_figures(side, room) + "\n", palette.text)
    left, right = comparison.sides
    if not comparison.over:
        out.append("running …", palette.dim)
    elif left.rounds and right.rounds:
        apart = comparison.divergence()
        out.append(_difference(left, right), palette.accent)
        if apart is None:
            same = "the same tokens" if left.tokens == right.tokens else "the same tokens so far"
            out.append(f"   {same}", palette.state["hit"])
        else:
            why = f": {_why_apart(left, right)}" if width >= TABLE_WIDTH else ""
            out.append(f"   texts part at token {apart}{why}", palette.warning)
    return out


def _figures(side: Side, width: int) -> str:
    """What one side did, on one line; where it does not fit, what can be worked out goes first."""
    tokens = max(0, len(side.tokens) - 1)
    speed = tokens / side.seconds if side.seconds else float("nan")
    per = tokens / side.rounds if side.rounds else float("nan")
    figures = {
        "rounds": f"{side.rounds:>5} rounds",
        "tokens": f"{tokens:>5} tokens",
        "per": f"{per:>5.2f} tokens/round",
        "seconds": f"{side.seconds:>6.2f} s",
        "speed": f"{amount(speed):>6} tokens/s",
    }
    for less in ("per", "tokens", "speed"):
        line = f"{side.config.method:<14}" + "  ".join(figures.values())
        if len(line) <= width:
            return line
        del figures[less]
    return f"{side.config.method:<8}" + "  ".join(figures.values())


def _difference(left: Side, right: Side) -> str:
    rounds = right.rounds - left.rounds
    more = (
        "as many rounds"
        if rounds == 0
        else f"{abs(rounds)} {'more' if rounds > 0 else 'fewer'} rounds"
    )
    words = f"B takes {more}"
    if left.seconds > 0 and right.seconds > 0:
        gap = right.seconds - left.seconds
        factor = right.seconds / left.seconds
        speed = f"{factor:.2f}× A's time" if factor >= 1 else f"{1 / factor:.2f}× as fast"
        words += f" and {abs(gap):.2f} s {'more' if gap > 0 else 'less'} ({speed})"
    return words


def _why_apart(left: Side, right: Side) -> str:
    if left.config.sampling != right.config.sampling:
        return "the two sample differently."
    return (
        "rounding in the model's precision can flip near ties; 'dartree verify' shows the margin."
    )


def table(comparison: Comparison, palette: Palette, width: int) -> tuple[Text, int]:
    """The answer cut wherever a round began on either side; one line a piece.

    Returns:
        The table, and the line on which the two part; 0 while they do not.
    """
    column = max(12, (width - 12) // 2)
    out = Text(style=palette.text)
    tokens = [side.tokens for side in comparison.sides]
    out.append(f"{'token':<8}{fit('A', column)}  {fit('B', column)}\n", palette.dim)
    vocab = comparison.sides[0].store.vocab
    apart, parting = comparison.divergence(), 0
    for line, row in enumerate(comparison.rows(), 1):
        if apart is not None and row.start <= apart:
            parting = line
        out.append(f"{row.start:<8}", palette.dim)
        for side, ids, number, opens in zip((0, 1), tokens, row.rounds, row.opens, strict=True):
            shown = "".join(vocab.shown(t) for t in ids[row.start : row.end])
            lead = "      "
            if opens:
                lead = "first " if number is None else f"{number + 1:>4} ┬"
            elif shown:
                lead = "     │"
            mine = palette.state["hit"] if opens else palette.text
            out.append(lead + " ", palette.dim if not opens else palette.accent)
            out.append(fit(shown, column - cell_len(lead) - 1), mine)
            out.append("  " if side == 0 else "\n")
    return out, parting


def stacked(comparison: Comparison, palette: Palette, width: int) -> tuple[Text, int]:
    """The same pieces for a narrow screen: below each other, or once where both agree."""
    out = Text(style=palette.text)
    left, right = (side.tokens for side in comparison.sides)
    vocab = comparison.sides[0].store.vocab
    apart, parting, lines = comparison.divergence(), 0, 0
    for row in comparison.rows():
        if apart is not None and row.start <= apart:
            parting = lines + 1
        pieces = {"A": left[row.start : row.end], "B": right[row.start : row.end]}
        if pieces["A"] == pieces["B"]:
            pieces = {"=": pieces["A"]}
        lead = f"{row.start:<5}"
        for name, ids in pieces.items():
            shown = "".join(vocab.shown(t) for t in ids)
            ink = palette.text if name == "=" else palette.state["hit"]
            for part in chop_cells(shown, max(8, width - 7)):
                out.append(lead, palette.dim).append(f"{name} ", palette.accent)
                out.append(part + "\n", ink)
                lead = " " * 5
                lines += 1
    return out, parting

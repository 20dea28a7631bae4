"""How fast it is, why, and whether speculation pays."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.style import Style
from rich.text import Text
from textual.geometry import Size

from dartree_core.events import STAGES
from dartree_tui.palette import Palette
from dartree_tui.widgets.figures import UNKNOWN, amount, prob, spark
from dartree_tui.widgets.panel import TextPanel
from dartree_tui.widgets.stats_data import Stats

STAGE_NAMES = {
    "draft": "draft",
    "tree_build": "tree",
    "tree_setup": "setup",
    "verify": "verify",
    "commit": "commit",
}
_FILLS = {"draft": "▓", "tree_build": "▒", "tree_setup": "░", "verify": "█", "commit": "▚"}
"""Told apart without colour; the target's own work is the solid one."""

_LABEL = 13
_FULL = 13
"""Lines from which the pane uses its roomy layout."""


class StatsPanel(TextPanel):
    """Pane of numbers: roomy where it is tall, five lines where it is not."""

    _stats: Stats | None = None

    def show(self, stats: Stats | None) -> None:
        """Show these numbers."""
        self._stats = stats
        self.rewrite()

    def write(self, size: Size, palette: Palette) -> Text:
        """See `TextPanel.write`."""
        if self._stats is None or self._stats.rounds == 0:
            return Text("No round yet.", palette.dim)
        return report(self._stats, size.width, size.height, palette)


def report(stats: Stats, width: int, height: int, palette: Palette) -> Text:
    """The pane's text for a pane of `width` × `height` cells."""
    write = _Writer(width, palette)
    if height >= _FULL:
        _full(write, stats)
    else:
        _compact(write, stats)
    _verdict(write, stats)
    write.text.rstrip()
    return write.text


class _Writer:
    """Text under construction, with the styles of the pane."""

    def __init__(self, width: int, palette: Palette) -> None:
        self.text = Text()
        self.width = width
        self.palette = palette

    def label(self, words: str) -> None:
        self.text.append(f"{words:<{_LABEL}}", self.palette.dim)

    def value(self, number: str, unit: str = "", style: Style | None = None) -> None:
        """A number with its unit, on a new line when it does not fit on this one."""
        needed = len(number) + len(unit) + bool(unit)
        if self.rest < min(needed, self.width):
            self.end()
        self.text.append(number, style or self.palette.text)
        self.text.append(f" {unit}  " if unit else "  ", self.palette.dim)

    def end(self) -> None:
        self.text.rstrip()
        self.text.append("\n")

    @property
    def rest(self) -> int:
        """Cells left on the current line."""
        line = self.text.plain.rpartition("\n")[2]
        return max(0, self.width - len(line))


def _full(write: _Writer, stats: Stats) -> None:
    write.label("tokens/s")
    write.value(amount(stats.now), "now")
    write.value(amount(stats.average), "avg")
    recent = stats.speeds[-max(0, min(24, write.rest)) :] if write.rest >= 4 else ()
    write.text.append(spark(list(recent)), write.palette.accent)
    write.end()
    write.label("plain AR")
    _baseline(write, stats, "tok/s")
    write.end()
    write.label("first token")
    write.value(amount(stats.ttft), "s")
    write.value(str(stats.kv_length), "in KV cache")
    write.end()
    write.label("acceptance")
    _tau(write, stats)
    write.end()
    _histogram(write, stats)
    _by_depth(write, stats)
    _stages(write, stats)
    write.label("tree")
    write.value(f"{stats.verified}/{stats.built}", "verified")
    write.value(str(stats.height), "deep")
    write.value(str(stats.budget), "budget")
    write.end()


def _compact(write: _Writer, stats: Stats) -> None:
    palette = write.palette
    write.value(amount(stats.now), "tok/s now")
    write.value(amount(stats.average), "avg")
    _baseline(write, stats)
    write.end()
    _tau(write, stats)
    write.end()
    lead = "conditional acceptance " if write.width >= 48 else "conditional "
    shown = stats.conditional[: max(1, (write.width - len(lead)) // 4)]
    write.text.append(lead, palette.dim)
    write.text.append(_short(shown), palette.text)
    write.end()
    _stages(write, stats, roomy=False)
    write.value(amount(stats.ttft), "s ttft")
    write.value(str(stats.kv_length), "KV")
    write.value(f"{stats.verified}/{stats.built}", "nodes")
    write.end()


def _baseline(write: _Writer, stats: Stats, unit: str = "AR") -> None:
    if math.isnan(stats.baseline):
        write.value("AR not measured yet", style=write.palette.dim)
        return
    write.value(amount(stats.baseline), unit)
    pays = stats.speedup >= 1
    style = write.palette.state["hit"] if pays else write.palette.warning
    write.value(f"{stats.speedup:.2f}×", "speedup", style)


def _tau(write: _Writer, stats: Stats) -> None:
    now = UNKNOWN if stats.emitted_now is None else str(stats.emitted_now)
    write.text.append("τ ", write.palette.dim)
    write.value(now, "now")
    write.value(UNKNOWN if math.isnan(stats.tau) else f"{stats.tau:.2f}", "avg")
    if write.rest >= 15:
        write.text.append("(counts bonus)", write.palette.dim)


def _histogram(write: _Writer, stats: Stats) -> None:
    """Rounds by number of accepted draft tokens, as bars over their numbers."""
    palette = write.palette
    top = max(stats.histogram, default=0)
    fits = stats.histogram[: max(1, (write.width - _LABEL) // 3)]
    write.label(" rounds")
    for count in fits:
        mark = spark([float(count)], float(top)) if count else " "
        write.text.append(f"{mark * 2} ", palette.state["hit"])
    write.text.append("\n")
    write.label(" accepting")
    write.text.append("".join(f"{k:<3}" for k in range(len(fits))), palette.dim)
    write.end()


def _by_depth(write: _Writer, stats: Stats) -> None:
    palette = write.palette
    depths = min(len(stats.survival), max(1, (write.width - _LABEL) // 5))
    write.label("by depth")
    write.text.append("".join(f"{d:<5}" for d in range(1, depths + 1)), palette.dim)
    write.end()
    for label, values in ((" survival", stats.survival), (" conditional", stats.conditional)):
        write.label(label)
        figures = "".join(f"{prob(p, 2):<5}" for p in values[:depths])
        write.text.append(figures, palette.text)
        write.end()


def _stages(write: _Writer, stats: Stats, roomy: bool = True) -> None:
    """Milliseconds of the newest round as a stacked bar, and its legend."""
    palette = write.palette
    total = sum(stats.ms.values())
    if roomy:
        write.label("ms per round")
        write.value(amount(total))
    else:
        write.value(amount(total), "ms")
    cells = max(0, min(40, write.rest - 1))
    parts = {stage: stats.ms.get(stage, 0.0) for stage in STAGES}
    for stage, share in zip(parts, _shares(list(parts.values()), cells), strict=True):
        write.text.append(_FILLS[stage] * share, palette.stage[stage])
    write.end()
    if roomy:
        write.label("")
    for stage, ms in parts.items():
        name = STAGE_NAMES[stage]
        entry = f"{_FILLS[stage]} {name} {amount(ms)}  "
        if write.rest < len(entry) - 2:
            write.end()
            if roomy:
                write.label("")
        write.text.append(_FILLS[stage], palette.stage[stage])
        write.text.append(f" {name} ", palette.dim)
        write.text.append(f"{amount(ms)}  ", palette.text)
    write.end()


def _shares(values: Sequence[float], cells: int) -> list[int]:
    """Cells of each part of a stacked bar that is exactly `cells` long, by largest remainder."""
    total = sum(values)
    if total <= 0:
        return [0] * len(values)
    exact = [v / total * cells for v in values]
    widths = [int(x) for x in exact]
    by_rest = sorted(range(len(values)), key=lambda i: widths[i] - exact[i])
    for i in by_rest[: cells - sum(widths)]:
        widths[i] += 1
    return widths


def _verdict(write: _Writer, stats: Stats) -> None:
    """Whether speculation is on and pays; in words, with the reason."""
    palette = write.palette
    style = palette.state["hit"] if stats.speculation == "pays" else palette.warning
    words = {
        "pays": "speculation pays",
        "on": "speculation on",
        "off": "speculation off",
        "not paying": "speculation does not pay",
    }[stats.speculation]
    write.text.append(words, palette.text if stats.speculation == "on" else style)
    if stats.reason:
        write.text.append(f": {stats.reason}", palette.text)


def _short(values: Sequence[float]) -> str:
    return " ".join(prob(p, 2) for p in values)

"""Charts as SVG text: lines over a scale, and stacked bars. Nothing else is needed here.

Colours come from classes that the page styles, so that one chart serves light and dark screens;
shapes of the markers tell series apart without colour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 520, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 14, 12, 42
_SERIES = 8
"""Styles a page has; further series start over."""


@dataclass(frozen=True, slots=True)
class Line:
    """A series of points.

    Attributes:
        name: For the legend.
        points: (x, y), in order of x.
        style: Number of its colour and marker, the same in every chart that shows the series.
    """

    name: str
    points: Sequence[tuple[float, float]]
    style: int = 0


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar made of parts.

    Attributes:
        name: Written before it.
        parts: Name to length.
        note: Written after it.
    """

    name: str
    parts: Mapping[str, float]
    note: str = ""


def line_chart(
    lines: Sequence[Line],
    *,
    x_label: str,
    y_label: str,
    x_names: Mapping[float, str] | None = None,
    baseline: float | None = None,
    top: float | None = None,
) -> str:
    """Lines with markers.

    Args:
        lines: The series.
        x_label, y_label: Names of the axes.
        x_names: Ticks by position; None marks every x that occurs.
        baseline: A y to draw a dashed line at.
        top: Where the y axis ends; None ends it above the largest value.
    """
    xs = sorted({x for line in lines for x, _ in line.points})
    ys = [y for line in lines for _, y in line.points]
    names = x_names or {x: f"{x:g}" for x in xs}
    ticks = nice_ticks(top if top is not None else max([*ys, baseline or 0.0]))
    across = _scale(xs, _LEFT, WIDTH - _RIGHT)
    height = ticks[-1]

    def up(y: float) -> float:
        return HEIGHT - _BOTTOM - y / height * (HEIGHT - _BOTTOM - _TOP)

    parts = [_grid(ticks, up)]
    for x in _thinned(xs, 12):
        parts.append(_text(across(x), HEIGHT - _BOTTOM + 16, names.get(x, f"{x:g}"), "middle"))
    parts.append(_text((_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 6, x_label, "middle", "axis"))
    parts.append(
        f'<text class="axis" text-anchor="middle" transform="rotate(-90)" '
        f'x="{-(_TOP + HEIGHT - _BOTTOM) / 2:.1f}" y="12">{escape(y_label)}</text>'
    )
    if baseline is not None:
        y = f"{up(baseline):.1f}"
        parts.append(f'<line class="base" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
    parts += [_series(line, across, up) for line in lines]
    return _figure("".join(parts), HEIGHT, f"{y_label} by {x_label}") + _legend(
        (line.name, f'<g class="s{_kind(line)}">{_marker(_kind(line), 6, 6)}</g>') for line in lines
    )


def bar_chart(bars: Sequence[Bar], *, order: Sequence[str], label: str) -> str:
    """Horizontal bars of equal length whose parts are shares.

    Args:
        bars: The bars, top to bottom.
        order: Names of all parts, left to right.
        label: What the whole chart shows, for screen readers.
    """
    names = [name for name in order if any(name in bar.parts for bar in bars)]
    left, row, gap = 150, 20, 8
    room = WIDTH - left - 70
    parts = []
    for i, bar in enumerate(bars):
        y = gap + i * (row + gap)
        parts.append(_text(left - 8, y + row / 2 + 4, bar.name, "end"))
        whole = sum(bar.parts.values()) or 1.0
        x = float(left)
        for name in names:
            value = bar.parts.get(name, 0.0)
            width = value / whole * room
            tip = escape(f"{bar.name}: {name} {value / whole:.0%}")
            parts.append(
                f'<rect class="f{order.index(name) % _SERIES}" x="{x:.1f}" y="{y}" '
                f'width="{width:.1f}" height="{row}"><title>{tip}</title></rect>'
            )
            x += width
        parts.append(_text(left + room + 8, y + row / 2 + 4, bar.note, "start"))
    height = gap + len(bars) * (row + gap)
    return _figure("".join(parts), height, label) + _legend(
        (name, f'<rect class="f{order.index(name) % _SERIES}" width="12" height="12"/>')
        for name in names
    )


def _legend(items: Iterable[tuple[str, str]]) -> str:
    """Names with their marks, as a list below the chart."""
    lines = "".join(
        f'<li><svg width="12" height="12">{mark}</svg>{escape(name)}</li>' for name, mark in items
    )
    return f'<ul class="legend">{lines}</ul>'


def _kind(line: Line) -> int:
    return line.style % _SERIES


def nice_ticks(largest: float, count: int = 5) -> list[float]:
    """Round values from 0 to at least `largest`, about `count` steps apart."""
    if not largest > 0 or not math.isfinite(largest):
        return [0.0, 1.0]
    rough = largest / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * (1 - 1e-9))
    steps = max(1, math.ceil(largest / step - 1e-9))
    return [round(i * step, 10) for i in range(steps + 1)]


def _scale(xs: Sequence[float], start: float, end: float) -> Callable[[float], float]:
    """From x to a place on the page, with room for markers at both ends."""
    low, high = min(xs, default=0.0), max(xs, default=1.0)
    start, end = start + 12, end - 12

    def place(x: float) -> float:
        share = (x - low) / (high - low) if high > low else 0.5
        return start + share * (end - start)

    return place


def _grid(ticks: Sequence[float], up: Callable[[float], float]) -> str:
    out = []
    for tick in ticks:
        y = f"{up(tick):.1f}"
        out.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
        out.append(_text(_LEFT - 6, up(tick) + 4, f"{tick:g}", "end"))
    return "".join(out)


def _series(line: Line, across: Callable[[float], float], up: Callable[[float], float]) -> str:
    kind = _kind(line)
    places = [(across(x), up(y)) for x, y in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    marks = "".join(
        f"<g>{_marker(kind, x, y)}<title>{escape(f'{line.name}: {value:.3g}')}</title></g>"
        for (x, y), (_, value) in zip(places, line.points, strict=True)
    )
    return f'<g class="s{kind}"><polyline points="{path}"/>{marks}</g>'


def _marker(kind: int, x: float, y: float) -> str:
    shapes = (
        [(-4, -4), (4, -4), (4, 4), (-4, 4)],
        [(0, -5), (5, 4), (-5, 4)],
        [(0, -5), (5, 0), (0, 5), (-5, 0)],
        [(0, 5), (5, -4), (-5, -4)],
    )
    if kind % 4 == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
    corners = shapes[kind % 4]
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return f'<polygon points="{points}"/>'


def _text(x: float, y: float, text: str, anchor: str, kind: str = "tick") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def _thinned(values: Sequence[float], most: int) -> Sequence[float]:
    step = max(1, math.ceil(len(values) / most))
    return values[::step]


def _figure(body: str, height: float, label: str) -> str:
    head = f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(label)}">'
    return f"{head}{body}</svg>"

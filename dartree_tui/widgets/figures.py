"""Numbers as the panes print them: short, aligned, honest about what is unknown."""

from __future__ import annotations

import math

UNKNOWN = "–"
"""Stands for a number nobody measured."""

_EIGHTHS = " ▏▎▍▌▋▊▉█"


def prob(p: float, digits: int = 3) -> str:
    """A probability: `.811`, `1.00`, `<.001`."""
    if math.isnan(p):
        return UNKNOWN
    if 0 < p < 10**-digits:
        return f"<{10**-digits:.{digits}f}".replace("0", "", 1)
    if p > 1 - 0.5 * 10**-digits:
        return f"{1:.{digits - 1}f}"
    return f"{p:.{digits}f}"[1:]


def signed(x: float, digits: int = 2) -> str:
    """A number with a true minus sign: `−0.21`."""
    if math.isnan(x):
        return UNKNOWN
    if math.isinf(x):
        return "−∞" if x < 0 else "∞"
    return f"{x:.{digits}f}".replace("-", "−")


def gain(x: float, digits: int = 2) -> str:
    """A difference: `+1.69`, `−0.20`."""
    text = signed(x, digits)
    return f"+{text}" if x >= 0 else text


def amount(x: float) -> str:
    """A rate or a time with about three figures: `91`, `8.4`, `0.42`, `1.2k`."""
    if math.isnan(x):
        return UNKNOWN
    if math.isinf(x):
        return "∞"
    for scale, unit in ((1e6, "M"), (1e4, "k")):
        if abs(x) >= scale:
            small = 1e3 if unit == "k" else scale
            return f"{x / small:.0f}{unit}" if x / small >= 100 else f"{x / small:.1f}{unit}"
    return f"{x:.0f}" if abs(x) >= 20 else f"{x:.1f}" if abs(x) >= 1 else f"{x:.2f}"


def rank(r: int) -> str:
    """A rank, 1 is best: `rank 3`; empty where unknown."""
    return f"rank {r}" if r > 0 else ""


def bar(share: float, cells: int) -> str:
    """A horizontal bar of up to `cells` cells, in eighths; never nothing for more than nothing."""
    if not share > 0 or cells <= 0:
        return ""
    eighths = max(1, round(min(share, 1.0) * cells * 8))
    full, rest = divmod(eighths, 8)
    return "█" * full + (_EIGHTHS[rest] if rest else "")


def spark(values: list[float], top: float | None = None) -> str:
    """Values as a row of eighth blocks from zero to `top` (their maximum by default)."""
    known = [v for v in values if math.isfinite(v)]
    high = top if top is not None else max(known, default=0.0)
    out = []
    for v in values:
        if not math.isfinite(v):
            out.append(" ")
        elif high <= 0:
            out.append("▁")
        else:
            out.append("▁▂▃▄▅▆▇█"[min(7, max(0, int(v / high * 8)))])
    return "".join(out)

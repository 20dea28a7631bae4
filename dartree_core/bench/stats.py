"""Medians and their spread."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

DIGITS = 4


def quartiles(values: Iterable[float | None]) -> tuple[float | None, float | None, float | None]:
    """Lower quartile, median and upper quartile; None without values.

    Quartiles interpolate between order statistics, both ends included, as numpy's do.
    """
    found = sorted(v for v in values if v is not None)
    if not found:
        return None, None, None
    if len(found) == 1:
        return (rounded(found[0]),) * 3
    low, middle, high = statistics.quantiles(found, n=4, method="inclusive")
    return rounded(low), rounded(middle), rounded(high)


def spread(name: str, values: Iterable[float | None], *, median: str = "") -> dict[str, Any]:
    """Median and quartiles under `name` (or `median`), `name_q1`, `name_q3`."""
    low, middle, high = quartiles(values)
    return {median or name: middle, f"{name}_q1": low, f"{name}_q3": high}


def ratio(part: float | None, whole: float | None) -> float | None:
    """A quotient to 4 decimals, or None where it is undefined."""
    return rounded(part / whole) if part is not None and whole else None


def mean(values: Sequence[float | None]) -> float | None:
    """The mean of what is known, or None when anything is missing."""
    known = [v for v in values if v is not None]
    return rounded(statistics.fmean(known)) if known and len(known) == len(values) else None


def rounded(value: float) -> float:
    """To the decimals reports carry."""
    return round(value, DIGITS)

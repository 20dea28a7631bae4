"""From path score to the chance that the target walks there, learnt from verified nodes."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

_EDGES = (-8.0, -6.0, -5.0, -4.0, -3.25, -2.5, -2.0, -1.5, -1.1, -0.8, -0.5, -0.25, -0.1)
_BINS = len(_EDGES) + 1
_PRIOR = 30.0
"""Observations a bin's prior, the score taken at its word, counts for."""
_FADE = 0.995
"""How fast a round's observations fade with every later one; texts change."""


class Calibration:
    """Acceptance by path score, in bins, each drawn towards what its scores promise."""

    def __init__(self) -> None:
        self._seen = [0.0] * _BINS
        self._hits = [0.0] * _BINS

    def chance(self, path_logp: float) -> float:
        """Estimated probability that a node with this path score is accepted."""
        at = bisect_left(_EDGES, path_logp)
        prior = math.exp(path_logp)
        return (self._hits[at] + _PRIOR * prior) / (self._seen[at] + _PRIOR)

    def learn(self, path_logp: Sequence[float], accepted: Sequence[bool]) -> None:
        """Verified nodes of one round and what became of them."""
        for i in range(_BINS):
            self._seen[i] *= _FADE
            self._hits[i] *= _FADE
        for score, hit in zip(path_logp, accepted, strict=True):
            at = bisect_left(_EDGES, score)
            self._seen[at] += 1
            self._hits[at] += hit

    def to_dict(self) -> dict[str, list[float]]:
        """What was learnt, JSON-ready."""
        return {
            "seen": [round(n, 2) for n in self._seen],
            "hits": [round(n, 2) for n in self._hits],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Calibration:
        """Inverse of `to_dict`.

        Raises:
            KeyError, TypeError, ValueError: This is no calibration of this version.
        """
        out = cls()
        seen = [float(n) for n in data["seen"]]
        hits = [float(n) for n in data["hits"]]
        # A comparison with NaN is false, so damaged numbers are refused too.
        pairs = zip(seen, hits, strict=True)
        if len(seen) != _BINS or not all(0 <= h <= s < math.inf for s, h in pairs):
            raise ValueError("bins of another version")
        out._seen, out._hits = seen, hits
        return out

"""How often what the text says about itself comes true, learnt while decoding."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

_LENGTHS = (2, 3, 4, 6, 9, 14)
"""Upper ends of the match lengths that share an estimate; longer ones share the last."""
_PRIOR_WEIGHT = 8.0
_FADE = 0.98
CEILING = 0.98
"""No match is surer than this."""

SEEN = (0.25, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
LACKED = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
SECOND = (0.05, 0.08, 0.1, 0.1, 0.1, 0.1, 0.1)
"""What is believed before anything is known, by match length: of any match; of one that the
drafter has not proposed; of an older place that went on differently than the latest."""


class Shares:
    """The share of matches that were right, by match length: fading counts over a prior.

    Args:
        prior: One share per class of lengths, see `SEEN`.
    """

    def __init__(self, prior: Sequence[float]) -> None:
        self._seen = [_PRIOR_WEIGHT] * len(prior)
        self._right = [_PRIOR_WEIGHT * p for p in prior]

    def share(self, length: int) -> float:
        """Estimated probability that the next token is the match's, at most `CEILING`."""
        at = bisect_left(_LENGTHS, length)
        return min(CEILING, self._right[at] / self._seen[at])

    def learn(self, length: int, right: bool) -> None:
        """A match of `length` was followed by its token, or was not."""
        at = bisect_left(_LENGTHS, length)
        self._seen[at] = self._seen[at] * _FADE + 1
        self._right[at] = self._right[at] * _FADE + right

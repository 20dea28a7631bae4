"""What speculation may lose to plain decoding, and what it has lost: the guard of budget `auto`.

The unit is the plain step, the time in which plain decoding emits one token. A round that emits
`tokens` in `steps` loses `steps - tokens`, or earns where that is negative. A round is allowed
when its worst outcome, one token, still leaves every account within its limit:

- a turn is never further behind plain decoding than `TURN_LOSS` of its length,
- no `WINDOW` rounds of a turn are slower than plain decoding by more than `WINDOW_LOSS`: the
  losses of any run of rounds, counted without what was earned before it, stay below that share
  of a window,
- nor are the last `WINDOW` rounds of all turns together, so that many short turns cannot lose
  what one long turn could not.
"""

from __future__ import annotations

from collections import deque
from itertools import accumulate, islice

TURN_LOSS = 0.02
"""Share of a turn's plain time; the promise is 0.03, the rest is for costs that were misjudged."""
SHORT_TURN, SHORTEST_TURN = 48, 24
"""Tokens that a turn is taken to have at most, and at least, before it has shown its length: it
may lose `TURN_LOSS` of them, which is half a plain step to one, at once."""
WINDOW, WINDOW_LOSS = 64, 0.03


class Losses:
    """Losses of the last `WINDOW` rounds of a policy, over all its turns, in plain steps."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=WINDOW)

    def book(self, loss: float) -> None:
        """A round lost this much."""
        self._recent.append(loss)

    @property
    def left(self) -> float:
        """What the next round may lose."""
        return WINDOW_LOSS * WINDOW - sum(self._recent)


class Allowance:
    """The account of one turn, in plain steps.

    Args:
        limit: Most tokens the turn's rounds may emit.
        losses: The account of all turns; this turn's rounds are booked there too.
    """

    def __init__(self, limit: int, losses: Losses) -> None:
        self._limit = limit
        self._all = losses
        self._tokens = self._rounds = 0
        self._lost = 0.0
        # The window that ends with the next round holds this many rounds before it.
        self._recent: deque[float] = deque(maxlen=WINDOW - 1)

    @property
    def lost(self) -> float:
        """Steps this turn is behind plain decoding; negative when ahead."""
        return self._lost

    def book(self, steps: float, tokens: int) -> None:
        """A round took `steps` and emitted `tokens`."""
        loss = steps - tokens
        self._tokens += tokens
        self._rounds += 1
        self._lost += loss
        self._recent.append(loss)
        self._all.book(loss)

    @property
    def left(self) -> float:
        """Steps that the next round may lose."""
        expected = max(self._tokens, min(self._limit, SHORT_TURN), SHORTEST_TURN)
        turn = TURN_LOSS * expected - self._lost
        return min(turn, WINDOW_LOSS * WINDOW - self._worst_window(), self._all.left)

    def _worst_window(self) -> float:
        """Most that a window which is not over yet has lost so far.

        A window is `WINDOW` rounds, and the turn has at most as many rounds to go as tokens: one
        that it would end before counts for nothing.
        """
        youngest = max(1, WINDOW - (self._limit - self._tokens))
        runs = accumulate(reversed(self._recent))
        return max(0.0, max(islice(runs, youngest - 1, None), default=0.0))

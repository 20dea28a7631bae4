"""Budget `auto`: how far to draft, how much to verify, and when not to bother.

A node earns its place when the tokens it is expected to add are worth more than the time its row
adds to the verification. Path scores, corrected by what was accepted so far, give the first;
measured pass costs the second. The exchange rate is the decoder's own speed: maximising
`tokens - rate * milliseconds` in every round maximises tokens per millisecond overall. When no
tree has been paying, rounds are decoded plainly and drafting is tried again now and then.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dartree_core.config import TreeConfig
from dartree_core.draft.drafter import Drafter
from dartree_core.engine.costs import PassCosts
from dartree_core.events import RoundDone

_EDGES = (-8.0, -6.0, -5.0, -4.0, -3.25, -2.5, -2.0, -1.5, -1.1, -0.8, -0.5, -0.25, -0.1)
_PRIOR = 12.0
"""Observations a bin's prior, the score taken at its word, counts for."""
_FADE = 0.995
"""How fast calibration forgets; texts change."""
_RECENT = 0.93
"""How fast the speed of speculation forgets: half a dozen rounds weigh most."""
_TRIAL = 6
"""Rounds speculated before the first verdict."""
_FIRST_PAUSE, _LONGEST_PAUSE = 6, 48
"""Plain rounds between two tries, doubling while they fail."""
_WINDOW, _LOSS = 64, 0.03
"""Over this many rounds, the share of plain decoding's time that tries may cost."""


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """What a round should do.

    Attributes:
        draft: False to decode plainly.
        depth: Deepest node worth building; None for no opinion.
        width: Nodes per depth worth building; None for no opinion.
        note: Why not to draft, or "".
    """

    draft: bool = True
    depth: int | None = None
    width: int | None = None
    note: str = ""

    def adjust(self, tree: TreeConfig, drafter: Drafter) -> TreeConfig:
        """The round's settings: no wider and no deeper than planned, so neither is the block."""
        if self.depth is None or self.width is None:
            return tree
        rows = self.depth + (0 if drafter.spec.shift_label else 1)
        size = min(drafter.block_size(tree.block_size), max(2, rows))
        return replace(tree, width=min(tree.width, self.width), block_size=size)


class Calibration:
    """From path score to the chance that the target walks there, learnt from verified nodes."""

    def __init__(self) -> None:
        self._seen = [0.0] * (len(_EDGES) + 1)
        self._hits = [0.0] * (len(_EDGES) + 1)

    def chance(self, path_logp: float) -> float:
        """Estimated probability that a node with this path score is accepted."""
        at = bisect_left(_EDGES, path_logp)
        prior = math.exp(path_logp)
        return (self._hits[at] + _PRIOR * prior) / (self._seen[at] + _PRIOR)

    def learn(self, path_logp: Sequence[float], accepted: Sequence[bool]) -> None:
        """Verified nodes and what became of them."""
        for i in range(len(self._seen)):
            self._seen[i] *= _FADE
            self._hits[i] *= _FADE
        for score, hit in zip(path_logp, accepted, strict=True):
            at = bisect_left(_EDGES, score)
            self._seen[at] += 1
            self._hits[at] += hit


class BudgetPolicy:
    """One per decoder: what it learns serves all its turns.

    Args:
        costs: Cost of target passes.
        slots: Deepest tree the drafter allows.
    """

    def __init__(self, costs: PassCosts, slots: int) -> None:
        self.costs = costs
        self.calibration = Calibration()
        self._slots = slots
        self._tokens = self._ms = 0.0
        self._speculated = 0
        self._pause, self._waited = _FIRST_PAUSE, 0
        self._heights: deque[int] = deque(maxlen=8)
        self._sizes: deque[int] = deque(maxlen=8)
        self._window: deque[tuple[float, float]] = deque(maxlen=_WINDOW)

    @property
    def plain_rate(self) -> float:
        """Tokens per millisecond of plain decoding."""
        return 1.0 / self.costs(1)

    @property
    def gain(self) -> float | None:
        """Speed of recent speculation over plain decoding; None before any."""
        return self._tokens / self._ms / self.plain_rate if self._ms else None

    @property
    def rate(self) -> float:
        """Tokens per millisecond that time is worth now."""
        return self.plain_rate * max(1.0, self.gain or 1.0)

    def plan(self) -> RoundPlan:
        """Decide on the next round before anything is drafted."""
        depth = min(self._slots, max(self._heights, default=3) + 1)
        width = min(12, max(4, max(self._sizes, default=8)))
        gain = self.gain
        losing = gain is not None and gain < 1.0 and self._speculated >= _TRIAL
        if not losing and not self._overdrawn():
            return RoundPlan(True, depth, width)
        if self._waited >= self._pause and not self._overdrawn():
            return RoundPlan(True, depth, width)
        return RoundPlan(
            draft=False,
            note=f"plain: drafting has been running at {gain or 0:.2f}x plain decoding",
        )

    def _overdrawn(self) -> bool:
        """True when speculation has cost more than it may over the window."""
        spent = sum(ms for ms, _ in self._window)
        plain = sum(ms for _, ms in self._window)
        return len(self._window) >= _TRIAL and spent > (1 + _LOSS) * plain

    def size(self, path_logp: Sequence[float]) -> tuple[int, float]:
        """How many nodes to verify, of candidates in the order they would be kept.

        Returns:
            The number of nodes, and the tokens expected of the round with them.
        """
        rate = self.rate
        best, best_value, expected = 0, 1.0 - rate * self.costs(1), 1.0
        tokens = 1.0
        for n, score in enumerate(path_logp, start=1):
            tokens += self.calibration.chance(score)
            value = tokens - rate * self.costs(n + 1)
            if value > best_value:
                best, best_value, expected = n, value, tokens
        return best, expected

    def learn(self, done: RoundDone, *, drafted: bool) -> None:
        """A round is over: update costs, calibration and the running balance."""
        verify_ms = done.ms["verify"]
        if not drafted:
            self.after_plain(verify_ms)
            return
        tree = done.tree
        verified = [i for i in range(1, len(tree)) if tree.kept[i]]
        self.calibration.learn(
            [tree.path_logp[i] for i in verified], [tree.state[i] == "hit" for i in verified]
        )
        self.after_tree(
            tokens=len(done.accepted),
            rows=len(verified) + 1,
            height=tree.height,
            draft_ms=sum(done.ms.values()) - verify_ms,
            verify_ms=verify_ms,
        )

    def after_plain(self, ms: float) -> None:
        """A round without a draft took `ms`."""
        self.costs.observe(1, ms)
        self._waited += 1
        self._window.append((self.costs(1), self.costs(1)))

    def after_tree(
        self, *, tokens: int, rows: int, height: int, draft_ms: float, verify_ms: float
    ) -> None:
        """A drafted round emitted `tokens`.

        Args:
            tokens: Tokens the target confirmed, the bonus included.
            rows: Rows of the pass, the root included.
            height: Depth of the deepest verified node.
            draft_ms: Time of drafting, building and bookkeeping.
            verify_ms: Time of the pass and the walk.
        """
        self.costs.observe(rows, verify_ms)
        spent = draft_ms + self.costs(rows)
        self._tokens = self._tokens * _RECENT + tokens
        self._ms = self._ms * _RECENT + spent
        self._speculated += 1
        self._heights.append(height)
        self._sizes.append(rows - 1)
        self._window.append((spent, tokens * self.costs(1)))
        if self._speculated <= _TRIAL:
            return
        if (self.gain or 0.0) >= 1.0:
            self._pause = _FIRST_PAUSE
        elif self._waited:
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self._waited = 0

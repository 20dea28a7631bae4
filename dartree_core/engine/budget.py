"""Budget `auto`: how far to draft, how much to verify, and when not to bother.

A node earns its place when the tokens it is expected to add are worth more than the time its row
adds to the verification. Path scores, corrected by what was accepted so far, give the first;
measured pass costs the second. The exchange rate is the decoder's own speed: maximising
`tokens - rate * milliseconds` in every round maximises tokens per millisecond overall.

Whether to draft at all is decided before: not while drafting has been slower than plain decoding
(it is tried again now and then), and never when the round could lose more than the turn's
allowance has left. So a turn starts with what is known, and gives up early where it does not
hold.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from dartree_core.config import TreeConfig
from dartree_core.engine.allowance import Allowance, Losses
from dartree_core.engine.calibration import Calibration
from dartree_core.engine.costs import PassCosts
from dartree_core.events import RoundDone

if TYPE_CHECKING:
    from dartree_core.draft.drafter import Drafter

_RECENT = 0.9
"""How fast the speed of a turn's speculation forgets: ten rounds weigh most."""
_LONG = 0.995
"""How fast the speed over all turns forgets."""
_KNOWN = 4.0
"""Rounds that the speed over all turns counts for in a turn's own."""
_TRUST = 0.5
"""Share of the expected tokens in a round's worth, beside the tokens it got. What was expected
varies less from round to round, what came is unbiased."""
_FIRST_PAUSE, _LONGEST_PAUSE = 6, 48
"""Plain rounds between two tries, doubling while they fail."""
_FEWEST = 2
"""Nodes that a draft must be able to pay for: one for fewer is thrown away, and with it what was
saved up for a try worth its name."""
_UNKNOWN_DRAFT = 0.25
"""Plain steps that a draft is taken to cost before one was timed."""
_HOST_SHARE = 0.5
"""Share of a drafted round's host work that a plain round is taken to have, too."""
_TIMED = 9
"""Timings whose median counts."""


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """What a round should do.

    Attributes:
        draft: False to decode plainly.
        depth: Deepest node worth building; None for no opinion.
        width: Nodes per depth worth building; None for no opinion.
        most: Nodes that may be worth verifying; None for no opinion.
        note: Why not to draft, or "".
        affordable: False when the round may not even try what something else recommends.
    """

    draft: bool = True
    depth: int | None = None
    width: int | None = None
    most: int | None = None
    note: str = ""
    affordable: bool = True

    def adjust(self, tree: TreeConfig, drafter: Drafter) -> TreeConfig:
        """The round's settings: no wider and no deeper than planned, so neither is the block."""
        if self.depth is None or self.width is None:
            return tree
        rows = self.depth + (0 if drafter.spec.shift_label else 1)
        size = min(drafter.block_size(tree.block_size), max(2, rows))
        return replace(tree, width=min(tree.width, self.width), block_size=size)


class _Recent:
    """The latest timings.

    Attributes:
        median: Of `_TIMED` of them: a few that were interrupted do not move it. None before any.
    """

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=_TIMED)
        self.median: float | None = None

    def append(self, ms: float) -> None:
        """Another timing. It is asked for several times a round, so the median is kept."""
        self._values.append(ms)
        self.median = median(self._values)


class BudgetPolicy:
    """What one way of drafting has shown itself to be worth, over all turns.

    Args:
        costs: Cost of target passes.
        slots: Deepest tree the drafter allows.
    """

    def __init__(self, costs: PassCosts, slots: int) -> None:
        self.costs = costs
        self.slots = slots
        self.calibration = Calibration()
        self.losses = Losses()
        self.heights: deque[int] = deque(maxlen=8)
        self.sizes: deque[int] = deque(maxlen=8)
        self._draft_ms, self._host_ms, self._drafted_host_ms = _Recent(), _Recent(), _Recent()
        self._rounds = self._tokens = self._steps = 0.0

    def turn(self, limit: int) -> TurnBudget:
        """The account of a new turn, whose rounds may emit `limit` tokens."""
        return TurnBudget(self, limit)

    @property
    def step_ms(self) -> float:
        """Milliseconds in which plain decoding emits a token: a pass and the host's work."""
        return self.costs(1) + self.host_ms

    @property
    def host_ms(self) -> float:
        """Milliseconds of the host's work in a plain round, the recent median; before one was
        timed, a share of a drafted round's."""
        if self._host_ms.median is not None:
            return self._host_ms.median
        return _HOST_SHARE * (self._drafted_host_ms.median or 0.0)

    def beyond_plain(self, host_ms: float) -> float:
        """What a drafted round's host work takes more than a plain round's."""
        return max(0.0, host_ms - self.host_ms)

    @property
    def draft_ms(self) -> float:
        """Milliseconds of drafting, building a tree and looking after it, the recent median."""
        known = self._draft_ms.median
        return _UNKNOWN_DRAFT * self.costs(1) if known is None else known

    @property
    def known(self) -> tuple[float, float]:
        """Tokens and plain steps of an average drafted round; zeros before any."""
        if not self._rounds:
            return 0.0, 0.0
        return self._tokens / self._rounds, self._steps / self._rounds

    def timed(self, host_ms: float, draft_ms: float | None = None) -> None:
        """A round's host work took `host_ms`, and drafting and building, if it did, `draft_ms`.

        A draft cannot move the estimate by more than its size: the first of a process, or one
        that was interrupted, says little about the next.
        """
        if draft_ms is None:
            self._host_ms.append(host_ms)
            return
        self._drafted_host_ms.append(host_ms)
        self._draft_ms.append(min(draft_ms + self.beyond_plain(host_ms), 2 * self.draft_ms))

    def learn(self, worth: float, steps: float, height: int, size: int) -> None:
        """A drafted round was worth `worth` tokens and took `steps`; its tree's shape."""
        self._rounds = self._rounds * _LONG + 1
        self._tokens = self._tokens * _LONG + worth
        self._steps = self._steps * _LONG + steps
        self.heights.append(height)
        self.sizes.append(size)

    def to_dict(self) -> dict[str, Any]:
        """What later processes should start with, JSON-ready."""
        return {
            "rounds": round(self._rounds, 2),
            "tokens": round(self._tokens, 2),
            "steps": round(self._steps, 2),
            "draft_ms": round(self.draft_ms, 4),
            "calibration": self.calibration.to_dict(),
        }

    def restore(self, data: object) -> None:
        """Start with what an earlier process learnt; anything but `to_dict`'s is ignored."""
        if not isinstance(data, Mapping):
            return
        try:
            calibration = Calibration.from_dict(data["calibration"])
            figures = [float(data[name]) for name in ("rounds", "tokens", "steps", "draft_ms")]
        except (KeyError, TypeError, ValueError):
            return
        # A comparison with NaN is false.
        if not all(0 < figure < 1e9 for figure in figures):
            return
        self.calibration = calibration
        self._rounds, self._tokens, self._steps = figures[:3]
        self._draft_ms.append(figures[3])


class TurnBudget:
    """Sizes the rounds of one turn; see `BudgetPolicy.turn`."""

    def __init__(self, policy: BudgetPolicy, limit: int) -> None:
        self._policy = policy
        self._allowance = Allowance(limit, policy.losses)
        self._tokens = self._steps = 0.0
        self._pause = _FIRST_PAUSE
        self._waited = _FIRST_PAUSE  # a turn starts with a try
        self._expected = 1.0
        self._drafts = 0

    @property
    def drafted(self) -> bool:
        """True when a round of this turn drafted."""
        return self._drafts > 0

    @property
    def lost(self) -> float:
        """Plain steps this turn is behind plain decoding; negative when ahead."""
        return self._allowance.lost

    @property
    def gain(self) -> float | None:
        """Speed of recent speculation over plain decoding; None before any."""
        tokens, steps = self._policy.known
        spent = self._steps + _KNOWN * steps
        return (self._tokens + _KNOWN * tokens) / spent if spent else None

    @property
    def rate(self) -> float:
        """Tokens per millisecond that time is worth now."""
        return max(1.0, self.gain or 1.0) / self._policy.step_ms

    def plan(self) -> RoundPlan:
        """Decide on the next round before anything is drafted."""
        policy = self._policy
        nodes_ms = max(0.0, policy.costs(1 + _FEWEST) - policy.costs(1))
        if policy.draft_ms + nodes_ms > self._allowance.left * policy.step_ms:
            note = "plain: a draft that failed would lose more than the turn may lose now"
            return RoundPlan(draft=False, note=note, affordable=False)
        gain = self.gain
        if gain is not None and gain < 1.0 and self._waited < self._pause:
            note = f"plain: drafting has been running at {gain:.2f}x plain decoding"
            return RoundPlan(draft=False, note=note)
        depth = min(policy.slots, max(policy.heights, default=3) + 1)
        largest = max(policy.sizes, default=8)
        return RoundPlan(True, depth, min(12, max(4, largest)), most=2 * max(4, largest))

    def size(self, path_logp: Sequence[float]) -> tuple[int, float]:
        """How many nodes to verify, of candidates in the order they would be kept.

        Never so many that the round, should none be accepted, costs more than may be lost.

        Returns:
            The number of nodes, and the tokens expected of the round with them.
        """
        policy, rate = self._policy, self.rate
        plain_ms = policy.costs(1)
        spare_ms = self._allowance.left * policy.step_ms - policy.draft_ms
        best, best_value, self._expected = 0, 1.0 - rate * plain_ms, 1.0
        tokens = 1.0
        for n, score in enumerate(path_logp, start=1):
            ms = policy.costs(n + 1)
            if ms - plain_ms > spare_ms:
                break
            tokens += policy.calibration.chance(score)
            value = tokens - rate * ms
            if value > best_value:
                best, best_value, self._expected = n, value, tokens
        return best, self._expected

    def learn(
        self, done: RoundDone, *, drafted: bool, estimates: Sequence[float] | None = None
    ) -> None:
        """A round is over: update costs, calibration and the accounts.

        Args:
            done: The round.
            drafted: False when it was decoded plainly.
            estimates: Per node what `size` saw of it, where that is not its path score.
        """
        host_ms = done.ms["tree_setup"] + done.ms["commit"]
        if not drafted:
            self.after_plain(done.ms["verify"], host_ms)
            return
        tree = done.tree
        scores = tree.path_logp if estimates is None else estimates
        verified = [i for i in range(1, len(tree)) if tree.kept[i]]
        self._policy.calibration.learn(
            [scores[i] for i in verified], [tree.state[i] == "hit" for i in verified]
        )
        self.after_tree(
            tokens=len(done.accepted),
            rows=len(verified) + 1,
            height=tree.height,
            draft_ms=done.ms["draft"] + done.ms["tree_build"],
            verify_ms=done.ms["verify"],
            host_ms=host_ms,
        )

    def after_plain(self, verify_ms: float, host_ms: float = 0.0) -> None:
        """A round without a draft."""
        self._policy.costs.observe(1, verify_ms)
        self._policy.timed(host_ms)
        self._waited += 1
        self._allowance.book(1.0, 1)

    def after_tree(
        self,
        *,
        tokens: int,
        rows: int,
        height: int,
        draft_ms: float,
        verify_ms: float,
        host_ms: float = 0.0,
    ) -> None:
        """A drafted round emitted `tokens`.

        Args:
            tokens: Tokens the target confirmed, the bonus included.
            rows: Rows of the pass, the root included.
            height: Depth of the deepest verified node.
            draft_ms: Time of drafting and building.
            verify_ms: Time of the pass and the walk.
            host_ms: Time of everything else.
        """
        policy = self._policy
        policy.costs.observe(rows, verify_ms)
        policy.timed(host_ms, draft_ms)
        plain_ms = policy.costs(1)
        # Booked at what such a round costs, not at what a busy machine made of this one.
        draft_ms = min(draft_ms + policy.beyond_plain(host_ms), 2 * policy.draft_ms)
        steps = 1.0 + (draft_ms + policy.costs(rows) - plain_ms) / policy.step_ms
        worth = _TRUST * self._expected + (1 - _TRUST) * tokens
        self._tokens = self._tokens * _RECENT + worth
        self._steps = self._steps * _RECENT + steps
        policy.learn(worth, steps, height, rows - 1)
        self._allowance.book(steps, tokens)
        self._drafts += 1
        if (self.gain or 0.0) >= 1.0:
            self._pause = _FIRST_PAUSE
        elif self._waited and self._drafts > 1:
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self._waited = 0

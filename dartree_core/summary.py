"""A run in figures: what its events add up to, turn by turn."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dartree_core.events import (
    Calibrated,
    Event,
    PrefillDone,
    RoundDone,
    RunFailed,
    RunStarted,
    TurnFinished,
    TurnStarted,
    encode,
)
from dartree_core.metrics import RunningMetrics, aggregate
from dartree_core.tree import BonusFate


class RoundRow(NamedTuple):
    """One round without its tree.

    Attributes:
        nodes, built: Draft nodes verified, and in the supertree.
        height: Depth of the verified tree.
        accepted, emitted: Draft tokens emitted, and all tokens emitted.
        ms: Milliseconds in all stages; `stages` has them one by one.
    """

    turn: int
    round: int
    position: int
    budget: int
    nodes: int
    built: int
    height: int
    accepted: int
    emitted: int
    bonus: int | None
    bonus_fate: BonusFate | None
    kv_length: int
    expected: float | None
    ms: float
    stages: dict[str, float]
    text: str
    note: str

    @classmethod
    def of(cls, done: RoundDone) -> RoundRow:
        """The row of a round."""
        return cls(
            turn=done.turn,
            round=done.round,
            position=done.position,
            budget=done.budget,
            nodes=done.tree.num_verified,
            built=len(done.tree) - 1,
            height=done.tree.height,
            accepted=sum(source == "draft" for source in done.provenance),
            emitted=len(done.tokens),
            bonus=done.bonus,
            bonus_fate=done.bonus_fate,
            kv_length=done.kv_length,
            expected=done.expected,
            ms=round(sum(done.ms.values()), 4),
            stages={str(stage): ms for stage, ms in done.ms.items()},
            text=done.text_delta,
            note=done.note,
        )

    @property
    def badness(self) -> tuple[int, float]:
        """Grows as a round accepted less and took longer."""
        return -self.accepted, self.ms


@dataclass(slots=True)
class TurnSummary:
    """One turn. `reason` is "" while it has not finished."""

    turn: int
    prompt: str = ""
    template: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    prompt_tokens: int = 0
    reused_tokens: int = 0
    reason: str = ""
    text: str = ""
    metrics: RunningMetrics = field(default_factory=RunningMetrics)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, with the metrics' summary."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "metrics"}
        return {**plain, "metrics": self.metrics.summary()}


class RunSummary:
    """Adds up a stream of events. Memory grows with turns, and with rounds only on request.

    Args:
        turn: Count this turn only.
        worst: How many of the worst rounds to remember: those that accepted least, of these
            the slowest. Rounds that did not speculate are not among them.
        keep_rounds: Keep a row for every round.
    """

    def __init__(
        self, *, turn: int | None = None, worst: int = 5, keep_rounds: bool = False
    ) -> None:
        self.header = RunStarted()
        self.turns: list[TurnSummary] = []
        self.rounds: list[RoundRow] = []
        self.calibrated: Calibrated | None = None
        self.failure: RunFailed | None = None
        self._only = turn
        self._keep = keep_rounds
        self._limit = worst
        self._worst: list[tuple[tuple[int, float], int, RoundRow]] = []
        self._count = 0

    def update(self, event: Event) -> None:
        """Count an event."""
        match event:
            case RunStarted():
                self.header = event
            case Calibrated():
                self.calibrated = event
            case RunFailed():
                self.failure = event
            case TurnStarted() if self._counts(event.turn):
                self.turns.append(
                    TurnSummary(event.turn, event.prompt, event.template, dict(event.config))
                )
            case PrefillDone() | RoundDone() | TurnFinished() if self._counts(event.turn):
                self._count_turn(event)
            case _:
                pass

    def _counts(self, turn: int) -> bool:
        return self._only is None or self._only == turn

    def _count_turn(self, event: PrefillDone | RoundDone | TurnFinished) -> None:
        if not self.turns or self.turns[-1].turn != event.turn:
            self.turns.append(TurnSummary(event.turn))
        turn = self.turns[-1]
        turn.metrics.update(event)
        turn.text = event.text if isinstance(event, TurnFinished) else turn.text + event.text_delta
        match event:
            case PrefillDone():
                turn.prompt_tokens = event.prompt_tokens
                turn.reused_tokens = event.reused_tokens
            case TurnFinished():
                turn.reason = event.reason
            case RoundDone():
                self._count_round(RoundRow.of(event))

    def _count_round(self, row: RoundRow) -> None:
        if self._keep:
            self.rounds.append(row)
        if row.nodes and self._limit:
            self._count += 1
            entry = (row.badness, -self._count, row)
            if len(self._worst) < self._limit:
                heapq.heappush(self._worst, entry)
            else:
                heapq.heappushpop(self._worst, entry)

    @property
    def worst(self) -> list[RoundRow]:
        """The worst rounds, the very worst first, the earlier of equals first."""
        return [row for _, _, row in sorted(self._worst, reverse=True)]

    @property
    def metrics(self) -> RunningMetrics:
        """All turns together."""
        return aggregate(turn.metrics for turn in self.turns)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: `header`, `turns`, `metrics`, `worst_rounds`, and `rounds` where kept."""
        out: dict[str, Any] = {
            "header": encode(self.header),
            "turns": [turn.to_dict() for turn in self.turns],
            "metrics": self.metrics.summary(),
            "calibrated": encode(self.calibrated) if self.calibrated else None,
            "failure": encode(self.failure) if self.failure else None,
            "worst_rounds": [row._asdict() for row in self.worst],
        }
        if self._keep:
            out["rounds"] = [row._asdict() for row in self.rounds]
        return out

"""One model of the run, read by every widget.

The store is fed records in order and never asks for anything. It keeps a light mark of every
round for as long as the run lasts, and whole rounds only while they are recent; older ones come
back from the spool. It holds no clock and no colours.
"""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeAlias

from dartree_core.errors import TraceError
from dartree_core.events import (
    BlockDrafted,
    Calibrated,
    DepthExpanded,
    Event,
    LoadProgress,
    PrefillDone,
    RoundDone,
    RunFailed,
    RunStarted,
    TreePruned,
    TreeVerified,
    TurnFinished,
    TurnStarted,
)
from dartree_core.metrics import RunningMetrics
from dartree_core.trace import Skimmed
from dartree_core.tree import BonusFate
from dartree_tui.answers import goes_on
from dartree_tui.partial import PartialRound
from dartree_tui.provenance import Piece, split_delta
from dartree_tui.vocab import Vocab
from dartree_tui.widgets.stats_data import Stats, stats_of

AnyRound: TypeAlias = RoundDone | PartialRound

KEEP_ROUNDS = 256
"""Whole rounds held in memory; at 180 nodes with full detail about 100 kB each."""

SPEED_WINDOW = 8
"""Rounds behind "tokens/s now"."""

SPEED_HISTORY = 40
"""Rounds of the speed curve."""


@dataclass(frozen=True, slots=True)
class RoundMark:
    """What is remembered of every round: enough for the timeline, search and statistics.

    Attributes:
        turn: Index of the turn in the store (an engine may count again from 0).
        number: Round number within the turn.
        accepted: Draft tokens accepted and emitted; the bonus token is not counted.
        verified, built: Draft nodes verified, and built in all.
        span: Characters of the answer this round wrote.
        emitted: Tokens it emitted.
        drafted: Tokens of all nodes it built, packed.
        seconds: Time of all stages together.
        fate: Why the tree lacked the bonus token.
        note: Why the round did not speculate, or "".
        offset: Where the round lies in the spool, or -1.
    """

    turn: int
    number: int
    accepted: int
    verified: int
    built: int
    span: tuple[int, int]
    emitted: tuple[int, ...]
    drafted: array[int]
    seconds: float
    fate: BonusFate | None
    note: str
    offset: int


@dataclass(slots=True)
class Turn:
    """One question and its answer, as far as it has come.

    Attributes:
        index: Place in the store; an engine may count its turns anew.
        first_round, rounds: Its part of the store's `marks`.
        pieces: The answer's text by origin, in order, without gaps.
        replaced: True once the question was asked again.
        prompt_ids: The whole input; only the newest turn keeps it.
        continues: Index of the turn whose answer this one goes on with.
    """

    index: int
    prompt: str
    template: str
    config: Mapping[str, Any]
    first_round: int
    rounds: int = 0
    prefill: PrefillDone | None = None
    pieces: list[Piece] = field(default_factory=list)
    finished: TurnFinished | None = None
    failed: RunFailed | None = None
    metrics: RunningMetrics = field(default_factory=RunningMetrics)
    replaced: bool = False
    prompt_ids: Sequence[int] = ()
    continues: int | None = None
    _parts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The answer so far."""
        if len(self._parts) > 1:
            self._parts[:] = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    @property
    def over(self) -> bool:
        """True once nothing more will come."""
        return self.finished is not None or self.failed is not None

    def add(self, text: str) -> None:
        """Append text that became final."""
        if text:
            self._parts.append(text)


class Store:
    """The run so far.

    Attributes:
        vocab: Token texts; shared with the intake, which fills it.
        version: Grows with every record, so that a painter knows whether to look again.
        run: The header of the newest run.
        progress: The newest load report while something loads.
        turns, marks: Every turn and, flat over all turns, every round.
        heights: Accepted length of every round, for the timeline.
        partial: The round under construction, when stage events tell about it.
        baseline: Plain decoding on the same model and device, once measured.
        failed: The newest failure, until the next turn starts.
        going_on: Set before a turn starts that goes on with this one.
    """

    def __init__(
        self,
        vocab: Vocab | None = None,
        fetch: Callable[[int], RoundDone] | None = None,
        keep: int = KEEP_ROUNDS,
    ) -> None:
        self.version = 0
        self.vocab = Vocab() if vocab is None else vocab  # an empty one is going to be filled
        self.run: RunStarted | None = None
        self.progress: LoadProgress | None = None
        self.turns: list[Turn] = []
        self.marks: list[RoundMark] = []
        self.heights = array("l")
        self.partial: PartialRound | None = None
        self.baseline: Calibrated | None = None
        self.failed: RunFailed | None = None
        self.going_on: Turn | None = None
        self._fetch = fetch
        self._keep = keep
        self._recent: OrderedDict[int, RoundDone] = OrderedDict()
        self._root = 0

    # Feeding

    def feed(self, event: Event, offset: int = -1) -> None:
        """Take the next event; `offset` says where its line lies in the spool."""
        self.version += 1
        match event:
            case RunStarted():
                self.run = event
            case LoadProgress():
                self.progress = event
            case TurnStarted():
                self._turn_started(event)
            case Calibrated():
                self.baseline = event
            case RunFailed():
                self._failed(event)
            case _ if self.turns:
                self._in_turn(event, offset)
            case _:
                pass  # a stream joined in the middle of a turn: wait for the next one

    def _turn_started(self, event: TurnStarted) -> None:
        self.abandon("The answer broke off here.")
        self.failed = None
        self.partial = None
        turn = Turn(len(self.turns), event.prompt, event.template, event.config, len(self.marks))
        turn.prompt_ids = event.prompt_ids
        if self.turns:
            last = self.turns[-1]
            if self.going_on is None and goes_on(event, last.prompt_ids, self.tokens_of(last)):
                self.going_on = last  # of a recording, nobody said so before
            last.prompt_ids = ()
        if self.going_on is not None:
            turn.prompt, turn.continues = self.going_on.prompt, self.going_on.index
            self.going_on = None
        self.turns.append(turn)
        turn.metrics.update(event)

    def _failed(self, event: RunFailed) -> None:
        self.failed = event
        self.partial = None
        self.progress = None
        if self.turns and not self.turns[-1].over:
            self.turns[-1].failed = event

    def abandon(self, message: str) -> RunFailed | None:
        """The source is gone: what was open stays unfinished, and the event returned says so."""
        self.version += 1
        if not self.generating and self.partial is None:
            return None
        failed = RunFailed(message)
        self._failed(failed)
        return failed

    def set_replaced(self, turns: Iterable[Turn], replaced: bool) -> None:
        """Say whether the question of these turns was asked again."""
        self.version += 1
        for turn in turns:
            turn.replaced = replaced

    def _in_turn(self, event: Event, offset: int) -> None:
        turn = self.turns[-1]
        turn.metrics.update(event)
        match event:
            case PrefillDone():
                turn.prefill = event
                turn.add(event.text_delta)
                if event.span[0] < event.span[1]:
                    turn.pieces.append(Piece(*event.span, "prefill", -1))
                self._root = event.first_token
            case BlockDrafted() | DepthExpanded() | TreePruned() | TreeVerified():
                self._stage(turn, event)
            case RoundDone():
                self._round_done(turn, event, offset)
            case TurnFinished():
                turn.finished = event
                turn.add(event.text_delta)
                self.partial = None
            case _:
                pass

    def _stage(
        self, turn: Turn, event: BlockDrafted | DepthExpanded | TreePruned | TreeVerified
    ) -> None:
        if self.partial is None or self.partial.round != event.round:
            beta = turn.config.get("tree", {}).get("depth_bonus", 0.0)
            self.partial = PartialRound(event.turn, event.round, self._root, beta)
        self.partial.apply(event)

    def _round_done(self, turn: Turn, event: RoundDone, offset: int) -> None:
        self.partial = None
        index = len(self.marks)
        tree = event.tree
        self.marks.append(
            RoundMark(
                turn=turn.index,
                number=event.round,
                accepted=list(event.provenance).count("draft"),
                verified=tree.num_verified,
                built=len(tree) - 1,
                span=event.span,
                emitted=tuple(event.tokens),
                drafted=array("q", tree.token[1:]),
                seconds=sum(event.ms.values()) / 1000,
                fate=event.bonus_fate,
                note=event.note,
                offset=offset,
            )
        )
        self.heights.append(self.marks[-1].accepted)
        texts = [self.vocab.text(t) for t in event.tokens]
        for start, end, source in split_delta(
            event.text_delta, event.span, texts, event.provenance
        ):
            turn.pieces.append(Piece(start, end, source, turn.rounds))
        turn.rounds += 1
        turn.add(event.text_delta)
        if event.tokens:
            self._root = event.tokens[-1]
        self._remember(index, event)

    def _remember(self, index: int, event: RoundDone) -> None:
        if isinstance(event.tree, Skimmed):
            return  # whoever wants to see it has it read again
        self._recent[index] = event
        self._recent.move_to_end(index)
        while self._fetch is not None and len(self._recent) > self._keep:
            self._recent.popitem(last=False)

    # Reading

    @property
    def turn(self) -> Turn | None:
        """The newest turn."""
        return self.turns[-1] if self.turns else None

    @property
    def generating(self) -> bool:
        """True while a turn is open."""
        return bool(self.turns) and not self.turns[-1].over

    def round(self, index: int) -> RoundDone:
        """The round at `index` of `marks`, from memory or from the spool.

        Raises:
            TraceError: it is in memory no more, and cannot be read.
        """
        found = self._recent.get(index)
        if found is None:
            if self._fetch is None:
                raise IndexError(f"round {index} is not kept")
            found = self._fetch(self.marks[index].offset)
            self._remember(index, found)
        return found

    def rounds_of(self, turn: Turn) -> range:
        """Indices into `marks` of a turn's rounds."""
        return range(turn.first_round, turn.first_round + turn.rounds)

    def tokens_of(self, turn: Turn) -> list[int]:
        """Tokens a turn emitted, the prefill's first."""
        if turn.prefill is None:
            return []
        rounds = (self.marks[i].emitted for i in self.rounds_of(turn))
        return [turn.prefill.first_token, *chain.from_iterable(rounds)]

    def turn_of(self, index: int) -> Turn:
        """The turn a round belongs to."""
        return self.turns[self.marks[index].turn]

    def round_at(self, turn: Turn, char: int) -> int | None:
        """The round that wrote a character of the answer; None for prefill or outside."""
        for piece in reversed(turn.pieces):
            if piece.start <= char < piece.end:
                return turn.first_round + piece.round if piece.round >= 0 else None
        return None

    def tokens_per_second(self, index: int | None = None) -> float:
        """Emitted tokens per second over the last few rounds up to `index`, NaN before any."""
        last = len(self.marks) if index is None else index + 1
        if last == 0:
            return math.nan
        turn = self.marks[last - 1].turn
        window = [m for m in self.marks[max(0, last - SPEED_WINDOW) : last] if m.turn == turn]
        seconds = sum(m.seconds for m in window)
        return sum(len(m.emitted) for m in window) / seconds if seconds > 0 else math.nan

    def stats(self, index: int | None = None) -> Stats:
        """Numbers of the newest turn and round, or of a given round and its turn."""
        if index is None:
            index = len(self.marks) - 1
        turn = self.turn_of(index) if index >= 0 else self.turn
        if turn is None or index < turn.first_round:
            return Stats()
        recent = range(max(turn.first_round, index + 1 - SPEED_HISTORY), index + 1)
        last = None
        with suppress(TraceError):  # its place in the file may hold something else by now
            last = self.round(index)
        return stats_of(
            turn.metrics.summary(),
            last,
            now=self.tokens_per_second(index),
            speeds=[self.tokens_per_second(i) for i in recent],
            baseline=self.baseline.tokens_per_second if self.baseline else math.nan,
            method=str(turn.config.get("method", "dartree")),
        )

    def find(
        self, text: str = "", fate: BonusFate | None = None, worst_first: bool = False
    ) -> Iterator[int]:
        """Rounds that drafted or emitted a token with this text, and whose bonus had this fate.

        In order, or those that accepted least first (the larger tree first among equals).
        """
        wanted = self.vocab.find(text) if text else None
        order: Sequence[int] = range(len(self.marks))
        if worst_first:
            order = sorted(
                order, key=lambda i: (self.marks[i].accepted, -self.marks[i].verified, i)
            )
        for i in order:
            mark = self.marks[i]
            if fate is not None and mark.fate != fate:
                continue
            if wanted is not None and wanted.isdisjoint((*mark.emitted, *mark.drafted)):
                continue
            yield i

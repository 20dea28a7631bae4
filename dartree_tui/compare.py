"""The same prompt decoded twice: who emitted what in which round, and what it cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from dartree_core.config import DecodeConfig
from dartree_core.worker_protocol import Generate, Reply
from dartree_tui.jobs import Done
from dartree_tui.store import Store
from dartree_tui.vocab import Vocab


@dataclass(slots=True)
class Side:
    """One of the two runs."""

    config: DecodeConfig
    store: Store = field(default_factory=Store)
    error: str = ""

    @property
    def rounds(self) -> int:
        """Rounds so far."""
        return len(self.store.marks)

    @property
    def tokens(self) -> list[int]:
        """Emitted tokens, the prefill's first."""
        turn = self.store.turn
        return [] if turn is None else self.store.tokens_of(turn)

    @property
    def seconds(self) -> float:
        """Time of all rounds; prefill is left out."""
        return sum(mark.seconds for mark in self.store.marks)


@dataclass(frozen=True, slots=True)
class Row:
    """Positions that lie in one round on either side.

    Attributes:
        start, end: Positions in the answer, in tokens; 0 is the prefill's.
        rounds: Per side, the round that emitted them; None for prefill or past the end.
        opens: Per side, True where that round begins here.
    """

    start: int
    end: int
    rounds: tuple[int | None, int | None]
    opens: tuple[bool, bool]


class Comparison:
    """Two sides of one prompt.

    Attributes:
        stopped: The user ended it.
        over: Nothing more will come.
    """

    def __init__(self, prompt: str, sides: tuple[Side, Side], vocab: Vocab) -> None:
        self.prompt = prompt
        self.sides = sides
        self.stopped = False
        self.over = False
        for side in sides:
            side.store = Store(vocab)

    def run(
        self,
        system: str,
        decode: Callable[[Side, Generate, Done], None],
        over: Callable[[], None],
        which: int = 0,
    ) -> None:
        """Decode one side after the other.

        Args:
            system: The system prompt, if any.
            decode: Sends a request whose events go to the side's store.
            over: Called when nothing more will come.
            which: The side to begin with.
        """
        side = self.sides[which]
        messages = [{"role": "user", "content": self.prompt}]
        if system.strip():
            messages.insert(0, {"role": "system", "content": system})

        def done(reply: Reply) -> None:
            side.error = "" if reply.ok else f"{reply.message} {reply.remedy}".strip()
            if which == 0 and reply.ok and not self.stopped:
                self.run(system, decode, over, 1)
                return
            self.over = True
            over()

        decode(side, Generate(messages, config=side.config.to_dict(), fresh=True), done)

    def stop(self) -> None:
        """Do not go on with the second side."""
        self.stopped = True

    def divergence(self) -> int | None:
        """First position where the emitted tokens differ, as far as both have come."""
        left, right = self.sides[0].tokens, self.sides[1].tokens
        for i, (a, b) in enumerate(zip(left, right, strict=False)):
            if a != b:
                return i
        return None

    def rows(self) -> Iterator[Row]:
        """The answer cut wherever either side began a round."""
        spans = [_spans(side) for side in self.sides]
        cuts = sorted({edge for side in spans for span in side for edge in span[:2]})
        at = [0, 0]
        for start, end in pairwise(cuts):
            rounds: list[int | None] = []
            opens: list[bool] = []
            for s, side in enumerate(spans):
                while at[s] < len(side) and side[at[s]][1] <= start:
                    at[s] += 1
                here = at[s] < len(side) and side[at[s]][0] <= start
                rounds.append(side[at[s]][2] if here else None)
                opens.append(here and side[at[s]][0] == start)
            yield Row(start, end, (rounds[0], rounds[1]), (opens[0], opens[1]))


def _spans(side: Side) -> list[tuple[int, int, int | None]]:
    """(first position, one past the last, round) of prefill and every round."""
    if not side.tokens:
        return []
    out: list[tuple[int, int, int | None]] = [(0, 1, None)]
    for i, mark in enumerate(side.store.marks):
        if mark.emitted:
            out.append((out[-1][1], out[-1][1] + len(mark.emitted), i))
    return out

"""Reading a trace out of order: any round of any turn, without parsing the others."""

from __future__ import annotations

import os
import re
import tempfile
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from types import TracebackType
from typing import BinaryIO, NamedTuple, Self, TypeVar

from dartree_core.errors import ConfigError, TraceError
from dartree_core.events import (
    Event,
    PrefillDone,
    RoundDone,
    RunStarted,
    TurnFinished,
    TurnStarted,
)
from dartree_core.pieces import TokenText
from dartree_core.trace.reader import (
    ByteLines,
    EventDecoder,
    loads,
    open_source,
    read_fault,
    read_header,
)
from dartree_core.trace.records import VOCAB

# What our writer puts first in a line; other lines are parsed to learn the same.
_START = re.compile(rb'\{"kind":"(\w+)"(?:,"turn":(\d+)(?:,"round":(\d+))?)?[,}]')

_TURN_KINDS = frozenset(c.__name__ for c in (TurnStarted, PrefillDone, TurnFinished))

_Kind = TypeVar("_Kind", TurnStarted, PrefillDone, RoundDone, TurnFinished)


class Place(NamedTuple):
    """Where a line starts: byte offset, and how many lines precede it."""

    offset: int
    line: int


class TraceTurn:
    """Where one turn's events lie. Costs 40 bytes a round.

    Attributes:
        turn: The turn's number.
        run: How many headers precede it; numbers start over with each.
        rounds: Round numbers in file order, which is ascending.
    """

    def __init__(self, turn: int, run: int = 1) -> None:
        self.turn = turn
        self.run = run
        self.rounds: array[int] = array("q")
        self.places: dict[str, Place] = {}
        self._start = array("q")
        self._start_line = array("q")
        self._done = array("q")
        self._done_line = array("q")

    def __len__(self) -> int:
        return len(self.rounds)

    def add(self, number: int, start: Place, done: Place) -> None:
        """Note a round: where its first event starts, and where its `RoundDone` does."""
        self.rounds.append(number)
        self._start.append(start.offset)
        self._start_line.append(start.line)
        self._done.append(done.offset)
        self._done_line.append(done.line)

    def find(self, number: int) -> tuple[Place, Place]:
        """Both places of a round.

        Raises:
            ConfigError: the turn has no such round.
        """
        i = bisect_left(self.rounds, number)
        if i == len(self.rounds) or self.rounds[i] != number:
            known = f"rounds {self.rounds[0]} to {self.rounds[-1]}" if self.rounds else "no rounds"
            raise ConfigError(
                f"There is no round {number} in turn {self.turn}, which has {known}.",
                "Choose one of those.",
            )
        return (
            Place(self._start[i], self._start_line[i]),
            Place(self._done[i], self._done_line[i]),
        )


class TraceIndex:
    """Random access to a trace.

    Opening scans the file once, looking only at the beginning of each line; a round is parsed
    when it is asked for. A compressed or unseekable source is first unpacked into an unnamed
    temporary file. Token texts are read while scanning, so they are complete from the start.

    A turn is named by its number or by its entry in `turns`; where several runs were recorded
    into one file, a number means the latest turn that has it.

    Args:
        source: A path, or a binary file.

    Attributes:
        header: The first event.
        vocab: Token id to text.
        turns: One entry a turn, in file order.
        cut: True when the file ends in the middle of a line or of its compression.

    Raises:
        TraceError: as `TraceReader`.
    """

    def __init__(self, source: str | os.PathLike[str] | BinaryIO) -> None:
        self.name, file, owned = open_source(source)
        self._owned = owned
        self.turns: list[TraceTurn] = []
        self._run = 1
        self.cut = self._spill_cut = False
        self._file = file
        try:
            self._make_seekable()
            self._decoder = EventDecoder(self.name)
            self._file.seek(0)
            first = self._file.readline()
            self.header = read_header(self._decoder, first)
            self._scanned = self._boundary = Place(len(first), 1)
            self.refresh()
        except OSError as error:
            self.close()
            raise read_fault(self.name, error) from error
        except BaseException:
            self.close()
            raise

    @property
    def vocab(self) -> dict[int, TokenText]:
        """Token id to text."""
        return self._decoder.vocab

    def turn(self, number: int | TraceTurn) -> TraceTurn:
        """The entry of a turn.

        Raises:
            ConfigError: there is no such turn.
        """
        if isinstance(number, TraceTurn):
            return number
        for entry in reversed(self.turns):
            if entry.turn == number:
                return entry
        known = ", ".join(str(t.turn) for t in self.turns) or "none"
        raise ConfigError(f"There is no turn {number} in {self.name}.", f"Its turns: {known}.")

    def round(self, turn: int | TraceTurn, number: int) -> RoundDone:
        """One round's final event.

        Raises:
            ConfigError: there is no such turn or round.
            TraceError: its line is damaged.
        """
        _, done = self.turn(turn).find(number)
        return self._one(done, RoundDone)

    def stages(self, turn: int | TraceTurn, number: int) -> list[Event]:
        """All of a round's events: the stage events, where recorded, and `RoundDone` last.

        Raises:
            ConfigError, TraceError: as `round`.
        """
        events: list[Event] = []
        start, _ = self.turn(turn).find(number)
        for event in self._from(start):
            events.append(event)
            if isinstance(event, RoundDone):
                break
        return events

    def started(self, turn: int | TraceTurn) -> TurnStarted | None:
        """How a turn began, if recorded."""
        return self._turn_event(turn, TurnStarted)

    def prefill(self, turn: int | TraceTurn) -> PrefillDone | None:
        """A turn's prefill, if recorded."""
        return self._turn_event(turn, PrefillDone)

    def finished(self, turn: int | TraceTurn) -> TurnFinished | None:
        """How a turn ended, if it did."""
        return self._turn_event(turn, TurnFinished)

    def play(self, turn: int | TraceTurn, number: int) -> Iterator[Event]:
        """Events from a round's first one to the end of what has been scanned.

        Raises:
            ConfigError, TraceError: as `round`.
        """
        return self._from(self.turn(turn).find(number)[0])

    def refresh(self) -> int:
        """Scan what was appended since; return the number of new rounds.

        Does nothing for a compressed or unseekable source, which was copied when opened.
        """
        before = sum(len(t) for t in self.turns)
        self.cut = self._spill_cut
        offset, line = self._scanned
        self._file.seek(offset)
        for data in self._file:
            if not data.endswith(b"\n") and not _is_json(data):
                self.cut = True
                break
            self._note(data, Place(offset, line))
            offset, line = self._scanned = Place(offset + len(data), line + 1)
        return sum(len(t) for t in self.turns) - before

    def _note(self, data: bytes, place: Place) -> None:
        kind, turn, number = self._identify(data, place)
        after = Place(place.offset + len(data), place.line + 1)
        if kind in (VOCAB, RunStarted.__name__):
            self._decoder.line = place.line
            self._decoder.event(data)
            self._run += kind != VOCAB
        elif turn is not None and kind == RoundDone.__name__ and number is not None:
            entry = self._entry(turn, place)
            if entry.rounds and entry.rounds[-1] >= number:
                raise self._fault(place, f"has round {number} after round {entry.rounds[-1]}")
            entry.add(number, self._boundary, place)
            self._boundary = after
        elif turn is not None and kind in _TURN_KINDS:
            self._entry(turn, place).places.setdefault(kind, place)
            self._boundary = after

    def _identify(self, data: bytes, place: Place) -> tuple[str, int | None, int | None]:
        match = _START.match(data)
        # `kind` alone says nothing about a turn further back in the line.
        if match and (match[2] or match[1] == VOCAB.encode()):
            kind, turn, number = match.groups()
            return kind.decode(), int(turn) if turn else None, int(number) if number else None
        if not data.strip():
            return "", None, None
        try:
            record = loads(data)
        except (ValueError, RecursionError) as error:
            raise self._fault(place, "is not valid JSON") from error
        if not isinstance(record, dict):
            raise self._fault(place, "is not a JSON object")
        turn, number = record.get("turn"), record.get("round")
        return (
            str(record.get("kind")),
            turn if isinstance(turn, int) else None,
            number if isinstance(number, int) else None,
        )

    def _entry(self, turn: int, place: Place) -> TraceTurn:
        last = self.turns[-1] if self.turns else None
        if last is None or (last.run, last.turn) != (self._run, turn):
            if any(t.run == self._run and t.turn == turn for t in self.turns):
                raise self._fault(place, f"returns to turn {turn}")
            last = TraceTurn(turn, self._run)
            self.turns.append(last)
        return last

    def _turn_event(self, turn: int | TraceTurn, cls: type[_Kind]) -> _Kind | None:
        place = self.turn(turn).places.get(cls.__name__)
        if place is None:
            return None
        return self._one(place, cls)

    def _one(self, place: Place, cls: type[_Kind]) -> _Kind:
        event = next(self._from(place), None)
        if not isinstance(event, cls):
            raise TraceError(f"{self.name} changed while it was open.", "Open it again.")
        return event

    def _from(self, place: Place) -> Iterator[Event]:
        """Events from a place on; others may move the file in between."""
        decoder = EventDecoder(self.name, place.line)
        offset = place.offset
        while offset < self._scanned.offset:
            self._file.seek(offset)
            data = self._file.readline()
            if not data:
                return
            offset += len(data)
            event = decoder.event(data)
            if event is not None:
                yield event

    def _fault(self, place: Place, what: str) -> TraceError:
        self._decoder.line = place.line + 1
        return self._decoder.fault(what)

    def _make_seekable(self) -> None:
        """Replace the file by a plain copy, unless it is plain and can be read anywhere."""
        lines = ByteLines(self._file, self.name)
        first = next(iter(lines), b"")
        if self._file.seekable() and not lines.packed:
            return
        copy = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the index
        try:
            copy.write(first)
            copy.writelines(lines)
        except BaseException:
            copy.close()
            raise
        self._spill_cut = lines.cut
        if self._owned:
            self._file.close()
        self._file, self._owned = copy, True

    def close(self) -> None:
        """Close the file, if opened here, and drop a temporary copy."""
        if self._owned:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _is_json(data: bytes) -> bool:
    try:
        loads(data)
    except (ValueError, RecursionError):
        return False
    return True

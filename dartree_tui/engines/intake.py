"""The door through which all records reach the app: parsed, spooled, queued."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from dartree_core.errors import DARTreeError
from dartree_core.events import (
    BlockDrafted,
    DepthExpanded,
    Event,
    LoadProgress,
    PrefillDone,
    RoundDone,
    TreePruned,
    TreeVerified,
)
from dartree_core.pieces import TokenText
from dartree_core.trace import EventDecoder
from dartree_core.trace.records import VOCAB
from dartree_core.worker_protocol import Reply, decode_reply
from dartree_tui.spool import Spool


def _start(kind: type[Event] | type[Reply]) -> bytes:
    """How a worker's lines of this kind start."""
    return f'{{"kind":"{kind.__name__}"'.encode()


_REPLY = _start(Reply)
_ROUND = _start(RoundDone)
_STAGES = tuple(map(_start, (BlockDrafted, DepthExpanded, TreePruned, TreeVerified)))
_QUIET = (
    *map(_start, (PrefillDone, RoundDone, LoadProgress)),
    *_STAGES,
    f'{{"kind":"{VOCAB}"'.encode(),
)
"""What comes while a turn goes its way, or models load."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The source ended.

    Attributes:
        message: What happened, one sentence; "" when the recorded stream is complete.
        tail: The last lines of its log.
    """

    message: str = ""
    tail: tuple[str, ...] = ()


Record: TypeAlias = Event | Reply | Lost


class Intake:
    """Takes lines from an engine's thread and gives records to the app's.

    Args:
        spool: Where events are kept, if anywhere.
        words: Token id to text; filled as the source tells.
        skip: Events that are neither kept nor given on.

    Attributes:
        news: True while something waits that is to be taken soon: a reply, the start or the end
            of a turn, the end of the source, what there was no time for.
        unhurried: Set by whoever takes, when rounds may come in heaps. A source can then sleep
            longer.
        ring: Set by whoever takes, called from any thread when there is news.
    """

    def __init__(
        self,
        spool: Spool | None,
        words: dict[int, TokenText],
        name: str = "The stream",
        skip: tuple[type[Event], ...] = (),
    ) -> None:
        self._spool = spool
        self._skip = skip
        self._decoder = EventDecoder(name)
        self._decoder.vocab = words
        self._queue: deque[tuple[Record, int] | bytes] = deque()
        self._damaged = False
        self.news = False
        self.unhurried = False
        self.ring: Callable[[], None] = lambda: None
        # Rounds queued unread and rounds taken: each is counted by one thread alone.
        self._came = 0
        self._taken = 0

    def redirect(self, spool: Spool | None, words: dict[int, TokenText]) -> None:
        """Keep what is taken from now on elsewhere. Only while nothing is under way."""
        self._spool = spool
        self._decoder.vocab = words

    def line(self, raw: bytes, offset: int | None = None) -> bool:
        """Take one line and read it now; `offset` when it already lies in the spool.

        False when the line is damaged: the source is then over.
        """
        found = self._read(raw, offset)
        if found is not None:
            self._queue.append(found)
            if not raw.startswith(_QUIET):
                self._tell()
        return found is None or not isinstance(found[0], Lost)

    def later(self, raw: bytes) -> None:
        """Take one line, to be read by `take`.

        A live source wakes its thread for every line; reading many of them at once costs a
        fraction of what reading each as it comes does. How a round came about is read only while
        it is news: once the whole round waits behind, its stages are spooled unread. Of rounds
        that others wait behind, figures are read, but no tree to show.
        """
        if raw.startswith(_ROUND):
            self._came += 1
        self._queue.append(raw)
        if not raw.startswith(_QUIET):
            self._tell()

    def _read(
        self, raw: bytes, offset: int | None, *, skimmed: bool = False
    ) -> tuple[Record, int] | None:
        try:
            if raw.startswith(_REPLY):
                return decode_reply(json.loads(raw)), -1
            event = self._decoder.event(raw, skimmed=skimmed)
            if event is None or isinstance(event, self._skip):
                return None
            return event, self._keep(event, raw) if offset is None else offset
        except (DARTreeError, ValueError) as error:
            return Lost(str(error)), -1

    def _keep(self, event: Event, raw: bytes) -> int:
        if self._spool is None or isinstance(event, LoadProgress):
            return -1
        return self._spool.append(event, raw, self._decoder.vocab)

    def _is_past(self, raw: bytes) -> bool:
        """True for what belongs to a round behind which another one waits, or, of its stages, the
        whole round; such rounds can be read again from the spool."""
        if raw.startswith(_ROUND):
            self._taken += 1
            kept = self._spool is not None and self._spool.keeps
            return kept and self._taken < self._came and not self._damaged
        return self._taken < self._came and raw.startswith(_STAGES) and not self._damaged

    def _spool_unread(self, raw: bytes) -> None:
        self._decoder.line += 1
        if self._spool is not None:
            self._spool.append_unread(raw, self._decoder.vocab)

    def end(self, lost: Lost) -> None:
        """The source is gone."""
        self._queue.append((lost, -1))
        self._tell()

    def _tell(self) -> None:
        self.news = True
        self.ring()

    def __len__(self) -> int:
        return len(self._queue)

    def take(self, seconds: float) -> Iterator[tuple[Record, int]]:
        """Queued records in order, for at most so long; the rest stays queued."""
        deadline = time.perf_counter() + seconds
        self.news = False
        while self._queue and time.perf_counter() < deadline:
            item = self._queue.popleft()
            past = False
            if isinstance(item, bytes):
                past = self._is_past(item)
                if past and item.startswith(_STAGES):
                    self._spool_unread(item)
                    continue
            found = item if isinstance(item, tuple) else self._read(item, None, skimmed=past)
            if found is None or self._damaged:
                continue
            self._damaged = isinstance(found[0], Lost)  # whatever follows an end is noise
            yield found
        if self._queue:
            self.news = True

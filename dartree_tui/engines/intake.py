"""The door through which all records reach the app: parsed, spooled, queued."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from dartree_core.errors import DARTreeError
from dartree_core.events import Event, LoadProgress
from dartree_core.pieces import TokenText
from dartree_core.trace import EventDecoder
from dartree_core.worker_protocol import Reply, decode_reply
from dartree_tui.spool import Spool

_REPLY = b'{"kind":"Reply"'


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
    """

    def __init__(
        self, spool: Spool | None, words: dict[int, TokenText], name: str = "The stream"
    ) -> None:
        self._spool = spool
        self._decoder = EventDecoder(name)
        self._decoder.vocab = words
        self._queue: deque[tuple[Record, int]] = deque()

    def redirect(self, spool: Spool | None, words: dict[int, TokenText]) -> None:
        """Keep what comes from now on elsewhere. Only while nothing is under way."""
        self._spool = spool
        self._decoder.vocab = words

    def line(self, raw: bytes, offset: int | None = None) -> bool:
        """Take one line; `offset` when it already lies in the spool.

        False when the line is damaged: the source is then over.
        """
        try:
            if raw.startswith(_REPLY):
                self._queue.append((decode_reply(json.loads(raw)), -1))
                return True
            event = self._decoder.event(raw)
            if event is not None:
                if offset is None:
                    offset = self._keep(event, raw)
                self._queue.append((event, offset))
        except (DARTreeError, ValueError) as error:
            self.end(Lost(str(error)))
            return False
        return True

    def _keep(self, event: Event, raw: bytes) -> int:
        if self._spool is None or isinstance(event, LoadProgress):
            return -1
        return self._spool.append(event, raw, self._decoder.vocab)

    def end(self, lost: Lost) -> None:
        """The source is gone."""
        self._queue.append((lost, -1))

    def __len__(self) -> int:
        return len(self._queue)

    def take(self, seconds: float) -> Iterator[tuple[Record, int]]:
        """Queued records in order, for at most so long; the rest stays queued."""
        deadline = time.perf_counter() + seconds
        while self._queue and time.perf_counter() < deadline:
            yield self._queue.popleft()

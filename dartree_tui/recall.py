"""Bringing a saved conversation's trees back, through the same door that live ones come by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from dartree_core.events import Calibrated, Event, RunStarted, TurnFinished, TurnStarted, encode
from dartree_core.trace import to_line
from dartree_core.worker_protocol import Reply
from dartree_tui.conversation import Conversation, Saved
from dartree_tui.engines import Intake, Lost
from dartree_tui.engines.replay import ReplayEngine
from dartree_tui.spool import Spool
from dartree_tui.store import Store
from dartree_tui.vocab import Vocab

_TOKENS = ("name", "revision", "vocab_size")
"""Facts of a target that decide what its token ids mean."""

END = "The recording ends here."
"""Why a turn that was recorded in part is unfinished."""


class Recall:
    """Reads a saved trace into a store and its spool.

    The store gets words of its own: who reads the trace may be another target than who wrote it.
    What was measured then is left out where the store knows what was measured now.

    Attributes:
        targets: Facts of the targets it was recorded with, as far as read.
        trouble: What was wrong with the trace, once it is over.

    Raises:
        TraceError: the trace is missing or none.
    """

    def __init__(
        self, chosen: Saved, conversation: Conversation, store: Store, spool: Spool
    ) -> None:
        self._engine = ReplayEngine(chosen.trace, addressed=False)
        self._conversation = conversation
        self._store = store
        store.vocab = Vocab()
        skip = () if store.baseline is None else (Calibrated,)
        self._intake = Intake(spool, store.vocab.words, str(chosen.trace), skip)
        messages = conversation.messages
        self._follows = {b: a for m in messages for a, b in pairwise(m.turns) if 0 <= a < b}
        self.targets: list[Mapping[str, Any]] = []
        self.trouble = ""
        self.over = False
        self._engine.start(self._intake)

    def pump(self, seconds: float) -> bool:
        """Take what has been read for at most so long; True when something came."""
        came = False
        for record, offset in self._intake.take(seconds):
            came = True
            if isinstance(record, Lost):
                self.over, self.trouble = True, record.message
                self._store.abandon(END)
                current = {turn for m in self._conversation.messages for turn in m.turns}
                gone = (turn for turn in self._store.turns if turn.index not in current)
                self._store.set_replaced(gone, True)
                break
            if not isinstance(record, Reply):
                self._feed(record, offset)
        return came

    def _feed(self, event: Event, offset: int) -> None:
        turns = self._store.turns
        if isinstance(event, RunStarted):
            self.targets.append(event.target)
        if isinstance(event, TurnStarted) and len(turns) in self._follows:
            self._store.going_on = turns[self._follows[len(turns)]]
        self._store.feed(event, offset)

    def close(self) -> None:
        """Stop reading."""
        self._engine.close()


def recall_text(conversation: Conversation, store: Store, spool: Spool) -> None:
    """Fill a store and its spool with the words alone, for a conversation without its trees."""
    events: list[Event] = [RunStarted()]
    messages = conversation.messages
    for place, (asked, said) in enumerate(pairwise(messages), 1):
        if asked.role == "user" and said.role == "assistant":
            turn, text = len(events) // 2, said.content
            events.append(TurnStarted(turn, asked.content, (), "", {}))
            events.append(TurnFinished(turn, "eos", text, (), text, (0, len(text))))
            messages[place] = replace(said, turns=(turn,))
    for event in events:
        store.feed(event, spool.append(event, to_line(encode(event)), {}))


def same_tokens(recorded: Mapping[str, Any], loaded: Mapping[str, Any]) -> bool:
    """Whether token ids of one target mean the same to the other; a nameless one has none."""
    known = recorded and loaded
    return not known or all(recorded.get(fact) == loaded.get(fact) for fact in _TOKENS)

"""Bringing a saved conversation's trees back, through the same door that live ones come by."""

from __future__ import annotations

from itertools import pairwise

from dartree_core.worker_protocol import Reply
from dartree_tui.conversation import Conversation, Saved
from dartree_tui.engines import Intake, Lost
from dartree_tui.engines.replay import ReplayEngine
from dartree_tui.spool import Spool
from dartree_tui.store import Store


class Recall:
    """Reads a saved trace into a store and its spool.

    Attributes:
        trouble: What was wrong with the trace, once it is over.

    Raises:
        TraceError: the trace is missing or none.
    """

    def __init__(
        self, chosen: Saved, conversation: Conversation, store: Store, spool: Spool
    ) -> None:
        self._engine = ReplayEngine(chosen.trace)
        self._conversation = conversation
        self._store = store
        self._intake = Intake(spool, store.vocab.words, str(chosen.trace))
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
                current = {m.turn for m in self._conversation.messages}
                for turn in self._store.turns:
                    turn.replaced = turn.index not in current
                break
            if not isinstance(record, Reply):
                self._store.feed(record, offset)
        return came

    def close(self) -> None:
        """Stop reading."""
        self._engine.close()


def recall_text(conversation: Conversation, store: Store) -> None:
    """Fill a store with the words alone, for a conversation whose trace is gone."""
    for asked, said in pairwise(conversation.messages):
        if asked.role == "user" and said.role == "assistant":
            store.recall(asked.content, said.content)

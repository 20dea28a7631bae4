"""The conversation held over a line: begun anew, saved, opened again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dartree_core.errors import DARTreeError, TraceError
from dartree_core.events import encode
from dartree_core.trace import to_line
from dartree_core.worker_protocol import Reset
from dartree_tui.conversation import Conversation, Saved, reopen
from dartree_tui.engines import Engine
from dartree_tui.line import Line
from dartree_tui.notices import Status
from dartree_tui.recall import Recall, recall_text, same_tokens
from dartree_tui.settings import Settings


class Talk(Line):
    """A line, and what is said over it.

    Args:
        make_engine, settings, record: As in `Line`.

    Attributes, beside those of `Line`:
        models: What is loaded, as the worker told; empty before.
    """

    def __init__(
        self, make_engine: Callable[[], Engine], settings: Settings, record: Path | None = None
    ) -> None:
        super().__init__(make_engine, settings, record)
        self.models: dict[str, Any] = {}
        self._recall: Recall | None = None
        self._recorded: list[Mapping[str, Any]] = []

    def new_conversation(self) -> bool:
        """Forget what was said, here and in the worker's caches."""
        if not self._may("start anew", "off", "ready", "lost"):
            return False
        baseline, before = self.store.baseline, self.spool
        try:
            self._start_run()
        except TraceError as error:
            return self._refuse(str(error), "error")
        before.close()
        self._recorded = []
        self._home()
        if baseline is not None:
            self.store.feed(baseline)
            self.spool.append(baseline, to_line(encode(baseline)), {})
        if self.status == "ready":
            self._send(Reset(), self._complain)
        return True

    def said(self) -> Conversation:
        """The conversation, of a replay too, where the turns on screen tell it."""
        if not self.engine.live:
            self.conversation.retell(self.store.turns)
        return self.conversation

    def save(self) -> Path | None:
        """Save the conversation with its trees; None, with a notice, when that fails."""
        if self._recall is not None:
            self._refuse("The conversation is still being opened.")
            return None
        try:
            return self.said().save(self.spool)
        except (DARTreeError, OSError) as error:
            self.tell(str(error), "error")
            return None

    def _keep_saved(self) -> None:
        if self.conversation.folder is not None:
            self.save()

    def open(self, chosen: Saved) -> bool:
        """Go on with a saved conversation; its trees arrive through `pump`."""
        try:
            conversation = reopen(chosen.folder)
        except DARTreeError as error:
            return self._refuse(str(error), "error")
        if not self.new_conversation():
            return False
        self.conversation = conversation
        try:
            self._recall = Recall(chosen, conversation, self.store, self.spool)
        except DARTreeError as error:
            self.tell(f"The conversation's trees are gone. {error}", "warning")
            if chosen.trace.exists():
                conversation.folder = None  # another version may read it: save beside it
            recall_text(conversation, self.store, self.spool)
        return True

    def _opened(self, recall: Recall) -> None:
        """All of a saved conversation that can be read is here."""
        self._recorded = recall.targets
        if recall.trouble:
            self.tell(recall.trouble, "warning")
            self.conversation.folder = None  # what could not be read stays where it is
        if self._foreign is not None:
            self.tell(
                f"These trees are of {self._foreign}, not of the loaded model. A new question goes "
                "on from the words alone, in a copy of the conversation."
            )
            return
        words = self.store.vocab.words
        words.update(self._words)
        self._words = words
        self._home()

    @property
    def _foreign(self) -> str | None:
        """The target of an opened conversation, where its token ids mean nothing to ours."""
        loaded = self.models.get("target") or {}
        found = (t for t in self._recorded if not same_tokens(t, loaded))
        return next((str(t.get("name")) for t in found), None)

    def _leave_foreign_trees(self) -> None:
        """Before something new is decoded: one run cannot hold tokens of two targets."""
        if self._foreign is None:
            return
        conversation = self.conversation
        self.new_conversation()
        self.conversation = conversation
        conversation.folder = None
        recall_text(conversation, self.store, self.spool)

    def _may(self, what: str, *states: Status) -> bool:
        if self._recall is not None:
            return self._refuse("The conversation is still being opened.")
        return super()._may(what, *states)

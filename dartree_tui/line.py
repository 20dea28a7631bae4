"""The line to an engine: what it is sent, where what it says goes, and what the user is told."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path

from dartree_core.errors import TraceError
from dartree_core.pieces import TokenText
from dartree_core.worker_protocol import Pause, Reply, Request, Resume, Step, StepBy
from dartree_tui.conversation import Conversation
from dartree_tui.engines import Engine, Intake
from dartree_tui.engines.replay import ReplayEngine
from dartree_tui.jobs import Done, Jobs
from dartree_tui.notices import Notice, Severity, Status, refusal
from dartree_tui.settings import Settings
from dartree_tui.spool import Spool, numbered
from dartree_tui.store import Store
from dartree_tui.vocab import Vocab


class Line:
    """An engine and the run it makes.

    Args:
        make_engine: Makes the engine, and another after a loss.
        settings: What the user likes.
        record: Also write the first conversation's trace here.

    Attributes:
        store: The run, as every widget reads it.
        conversation: What was said, as the model will read it.
        status: What is going on.
        stepping: True while the decoder is held and advances by request.
        notices: For the user, oldest first; the screen takes them.
    """

    def __init__(
        self, make_engine: Callable[[], Engine], settings: Settings, record: Path | None = None
    ) -> None:
        self._make_engine = make_engine
        self.settings = settings
        self.status: Status = "off"
        self.stepping = False
        self.notices: deque[Notice] = deque()
        self._recording = record
        self._runs = 0
        self._jobs = Jobs()
        self._words: dict[int, TokenText] = {}
        self.engine = make_engine()
        self._start_run()
        self.intake = Intake(self.spool, self.store.vocab.words, self.engine.label)

    def _start_run(self) -> None:
        """An empty store and conversation, with a spool of their own.

        Raises:
            TraceError: the spool cannot be made, or the first recording; a later one that cannot
                be made is done without.
        """
        if isinstance(self.engine, ReplayEngine):
            self.spool = self.engine.spool()
        else:
            self.spool = self._new_spool(numbered(self._recording, self._runs + 1))
            self._runs += 1
        # A worker tells a token's text once, not again for another conversation. These are the
        # words it told, also while the store shows a run that has words of its own.
        self.store = Store(Vocab(dict(self._words)), self.spool.round)
        self._words = self.store.vocab.words
        self.conversation = Conversation(self.settings.chat.system_prompt)
        self._sink = self.store

    def _new_spool(self, record: Path | None) -> Spool:
        try:
            return Spool(record=record)
        except TraceError as error:
            if record is None or self._runs == 0:
                raise
            self._recording = None
            self.tell(f"{error} Nothing is recorded from here on.", "error")
            return Spool()

    def _reconnect(self) -> None:
        """Another engine, for the same run."""
        self.engine.close()
        self.engine = self._make_engine()
        self.intake = Intake(self.spool, self._words, self.engine.label)
        self.stepping = False
        self._jobs = Jobs()
        self._sink = self.store
        self.status = "off"

    def _aside(self, store: Store) -> None:
        """Let what comes from now on go to another store, and into no file."""
        self.intake.redirect(None, self._words)
        self._sink = store

    def _home(self) -> None:
        """Let what comes from now on go to the run again."""
        self.intake.redirect(self.spool, self._words)
        self._sink = self.store

    # Requests

    def _send(self, request: Request, done: Done | None = None) -> None:
        self.engine.send(request if done is None else self._jobs.number(request, done))

    def step_mode(self, on: bool) -> None:
        """Hold the decoder, to advance by `step` alone; or let it run."""
        if self.engine.live and self.status != "lost":
            self.stepping = on
            self._send(Pause() if on else Resume())

    def step(self, by: StepBy) -> None:
        """Let the held decoder make its next event, or end its round."""
        if self.stepping:
            self._send(Step(by=by))

    # Words

    def _may(self, what: str, *states: Status) -> bool:
        if self.status in states:
            return True
        return self._refuse(refusal(self.status, what))

    def tell(self, text: str, severity: Severity = "information") -> None:
        """Queue a notice."""
        self.notices.append(Notice(text, severity))

    def _refuse(self, text: str, severity: Severity = "warning") -> bool:
        self.tell(text, severity)
        return False

    def _complain(self, reply: Reply) -> None:
        if not reply.ok:
            text = f"{reply.message} {reply.remedy}".strip()
            self.tell(text, "error")

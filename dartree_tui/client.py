"""The app without a screen: an engine, the run it makes, and the conversation around it.

Everything here runs on one thread, the app's. `pump` takes what the engine's thread has queued;
all other methods ask for something and return at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from dartree_core.config import DecodeConfig
from dartree_core.errors import DARTreeError
from dartree_core.events import Calibrated, LoadProgress, RunStarted, encode
from dartree_core.trace import to_line
from dartree_core.worker_protocol import (
    Calibrate,
    Cancel,
    Generate,
    Load,
    Pause,
    Reply,
    Request,
    Reset,
    Resume,
    Set,
    Step,
    StepBy,
)
from dartree_tui.compare import Comparison, Side
from dartree_tui.conversation import Conversation, Saved, reopen
from dartree_tui.engines import Engine, Intake, Lost
from dartree_tui.engines.replay import ReplayEngine
from dartree_tui.notices import Notice, Severity, Status, refusal
from dartree_tui.recall import Recall, recall_text
from dartree_tui.settings import Settings
from dartree_tui.spool import Spool, numbered
from dartree_tui.store import Store, models_of
from dartree_tui.vocab import Vocab


class Client:
    """One user's run.

    Args:
        make_engine: Makes the engine, and another after a loss.
        settings: What the user likes.
        record: Also write the first conversation's trace here.

    Attributes:
        store: The run, as every widget reads it.
        conversation: What was said, as the model will read it.
        status: What is going on.
        models: What is loaded, as the worker told; empty before.
        stepping: True while the decoder is held and advances by request.
        notices: For the user, oldest first; the screen takes them.
        unsent: A question that came to nothing, to be put back into the prompt.
        lost: Why the worker is gone, while it is.
        complete, trouble: The replay has been read to its end; what went wrong with it.
    """

    def __init__(
        self, make_engine: Callable[[], Engine], settings: Settings, record: Path | None = None
    ) -> None:
        self._make_engine = make_engine
        self.settings = settings
        self.status: Status = "off"
        self.models: dict[str, Any] = {}
        self.stepping = False
        self.notices: deque[Notice] = deque()
        self.unsent: str | None = None
        self.lost: Lost | None = None
        self.complete = False
        self.trouble = ""
        self.comparison: Comparison | None = None
        self.loading: LoadProgress | None = None
        self.recording = record
        self._runs = 0
        self._waiting: str | None = None
        self._unmeasured = False
        self._jobs: dict[int, Callable[[Reply], None]] = {}
        self._next_id = 1
        self._recall: Recall | None = None
        self.engine = make_engine()
        self._start_run()
        self.intake = Intake(self.spool, self.store.vocab.words, self.engine.label)

    def _start_run(self) -> None:
        """An empty store and conversation, with a spool of their own."""
        if isinstance(self.engine, ReplayEngine):
            self.spool = self.engine.spool()
        else:
            self._runs += 1
            self.spool = Spool(record=numbered(self.recording, self._runs))
        self.store = Store(Vocab(), self.spool.round)
        self.conversation = Conversation(self.settings.chat.system_prompt)
        self._sink = self.store

    # Life

    def start(self) -> None:
        """Start the engine; with a live one, load the models if the settings say so."""
        self.engine.start(self.intake)
        if not self.engine.live:
            self.status = "replay"
        elif self.settings.engine.load_at_start:
            self.load()

    def close(self) -> None:
        """Stop everything at once."""
        self.engine.close()
        self.spool.close()
        if self._recall is not None:
            self._recall.close()

    def restart(self) -> None:
        """A new worker in place of the lost one; conversation, trees and prompt stay."""
        self.engine.close()
        self.engine = self._make_engine()
        self.intake = Intake(self.spool, self.store.vocab.words, self.engine.label)
        self.lost = None
        self.stepping = False
        self._jobs.clear()
        self._sink = self.store
        self.status = "off"
        self.engine.start(self.intake)
        self.load()

    # Requests

    def load(self, **choice: str) -> bool:
        """Load models: those of the settings, or these instead (`bundle`, `target`, …)."""
        if not self._may("load a model", "off", "ready"):
            return False
        if choice:
            self.settings = self.settings.changed("engine", **choice)
            self.store.baseline = None
            if self.store.turns:
                self.new_conversation()  # its trees speak of another vocabulary
        engine = self.settings.engine
        self.status, self.models = "loading", {}
        self._send(
            Load(
                bundle=engine.bundle,
                target=engine.target or None,
                draft=engine.draft or None,
                device=engine.device,
                dtype=engine.dtype,
            ),
            self._loaded,
        )
        return True

    def ask(self, text: str) -> bool:
        """Ask a question. While something loads or is measured, it waits its turn.

        False when it cannot be asked; the caller keeps the text.
        """
        if self.status in ("loading", "calibrating") or self._recall is not None:
            if self._waiting is not None:
                return self._refuse("A question already waits for the model.")
            self._waiting = text
            if self.status == "calibrating":
                self._send(Cancel())
            return True
        if self.status == "off":
            return self._refuse("No model is loaded. Press f4 to choose one.")
        if not self._may("ask", "ready"):
            return False
        self.conversation.say(text)
        self.status = "busy"
        config = self.settings.decode.to_config()
        request = Generate(self.conversation.prompt(), config=config.to_dict())
        self._send(request, lambda reply: self._answered(reply, text))
        return True

    @property
    def reading(self) -> bool:
        """True while a recorded file, all of which is there already, is being read."""
        whole = isinstance(self.engine, ReplayEngine) and self.engine.whole
        return whole and not self.complete and len(self.store.marks) > 0

    @property
    def waiting(self) -> str | None:
        """The question that waits for the model."""
        return self._waiting

    def regenerate(self) -> bool:
        """Ask the last question again."""
        if not self._may("ask again", "ready"):
            return False
        text = self.conversation.take_back()
        if text is None:
            return self._refuse("There is no question to ask again.")
        turns = [t for t in self.store.turns if not t.replaced]
        if turns:
            turns[-1].replaced = True
        return self.ask(text)

    def stop(self) -> bool:
        """End whatever runs; False when nothing does."""
        if self._waiting is not None:
            self.unsent, self._waiting = self._waiting, None
            return True
        if self.status not in ("busy", "calibrating", "comparing"):
            return False
        if self.comparison is not None:
            self.comparison.stop()
        self._send(Cancel())
        return True

    def step_mode(self, on: bool) -> None:
        """Hold the decoder, to advance by `step` alone; or let it run."""
        if self.engine.live and self.status != "lost":
            self.stepping = on
            self._send(Pause() if on else Resume())

    def step(self, by: StepBy) -> None:
        """Let the held decoder make its next event, or end its round."""
        if self.stepping:
            self._send(Step(by=by))

    def change(self, **changes: Any) -> None:
        """Change decode settings; tree settings reach the running turn.

        Raises:
            ConfigError: a value does not validate. Nothing is changed then.
        """
        self.settings = self.settings.changed("decode", **changes)
        if self.engine.live and self.status not in ("off", "lost"):
            self._send(Set(changes), self._complain)

    def calibrate(self) -> bool:
        """Measure plain decoding on the loaded target."""
        if not self._may("measure", "ready"):
            return False
        self.status = "calibrating"
        self._send(Calibrate(), self._calibrated)
        return True

    def compare(self, prompt: str, left: DecodeConfig, right: DecodeConfig) -> bool:
        """Decode one prompt twice, in sessions of their own; see `comparison`."""
        if not self._may("compare", "ready"):
            return False
        self.comparison = Comparison(prompt, (Side(left), Side(right)), self.store.vocab)
        self.status = "comparing"
        self._compare_side(self.comparison, 0)
        return True

    def _compare_side(self, comparison: Comparison, which: int) -> None:
        side = comparison.sides[which]
        self.intake.redirect(None, self.store.vocab.words)
        self._sink = side.store
        messages = [{"role": "user", "content": comparison.prompt}]
        if self.conversation.system.strip():
            messages.insert(0, {"role": "system", "content": self.conversation.system})

        def done(reply: Reply) -> None:
            side.error = "" if reply.ok else f"{reply.message} {reply.remedy}".strip()
            if which == 0 and reply.ok and not comparison.stopped:
                self._compare_side(comparison, 1)
                return
            comparison.over = True
            self.intake.redirect(self.spool, self.store.vocab.words)
            self._sink = self.store
            self._idle()

        self._send(Generate(messages, config=side.config.to_dict(), fresh=True), done)

    # Conversations

    def new_conversation(self) -> bool:
        """Forget what was said, here and in the worker's caches."""
        if not self._may("start anew", "off", "ready", "lost"):
            return False
        baseline = self.store.baseline
        self.spool.close()
        self._start_run()
        self.intake.redirect(self.spool, self.store.vocab.words)
        if baseline is not None:
            self.store.feed(baseline)
            self.spool.append(baseline, to_line(encode(baseline)), {})
        if self.status == "ready":
            self._send(Reset(), self._complain)
        return True

    def save(self) -> Path | None:
        """Save the conversation with its trees; None, with a notice, when that fails."""
        try:
            return self.conversation.save(self.spool)
        except (DARTreeError, OSError) as error:
            self.tell(str(error), "error")
            return None

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
            recall_text(conversation, self.store)
        return True

    # What comes back

    def pump(self, seconds: float = 0.03) -> bool:
        """Take queued records for at most so long; True when something came."""
        came = False
        if self._recall is not None:
            came = self._recall.pump(seconds)
            if self._recall.over:
                trouble, self._recall = self._recall.trouble, None
                if trouble:
                    self.tell(trouble, "warning")
                self._idle()
        for record, offset in self.intake.take(seconds):
            came = True
            match record:
                case Reply():
                    job = self._jobs.pop(record.id, None) if isinstance(record.id, int) else None
                    if job is not None:
                        job(record)
                    elif not record.ok:
                        self._complain(record)
                case Lost():
                    self._ended(record)
                case LoadProgress():
                    self.loading = record
                case Calibrated():
                    self.store.feed(record, offset)
                case _:
                    self._sink.feed(record, offset)
                    if isinstance(record, RunStarted) and not self.engine.live:
                        self.models = models_of(record)
        return came

    def _ended(self, lost: Lost) -> None:
        if not self.engine.live:
            self.complete = True
            self.trouble = lost.message
            if lost.message:
                self.tell(lost.message, "error")
            return
        self.lost = lost
        self.status = "lost"
        self.stepping = False
        self._sink = self.store
        if self.comparison is not None:
            self.comparison.over = True
        self.store.abandon(lost.message)
        jobs, self._jobs = self._jobs, {}
        failure = Reply(None, "", False, lost.message)
        for job in jobs.values():
            job(failure)
        self.status = "lost"
        if self._waiting is not None:
            self.unsent, self._waiting = self._waiting, None

    def _loaded(self, reply: Reply) -> None:
        self.loading = None
        if not reply.ok:
            self.status = "off"
            self._complain(reply)
            if self._waiting is not None:
                self.unsent, self._waiting = self._waiting, None
            return
        self.models = dict(reply.result)
        self.status = "ready"
        self._unmeasured = self.settings.engine.calibrate
        self._idle()

    def _calibrated(self, reply: Reply) -> None:
        self._unmeasured = not reply.ok and self._waiting is not None
        if not reply.ok and self._waiting is None:
            self.tell(reply.message, "warning")
        self._idle()

    def _answered(self, reply: Reply, text: str) -> None:
        turn = self.store.turn
        if reply.ok and turn is not None and turn.text:
            self.conversation.answer(turn.text, turn.index)
            if self.conversation.folder is not None:
                self.save()
        else:
            self.conversation.take_back()
            self.unsent = text
            if reply.message and self.status != "lost":
                self._complain(reply)
        self._idle()

    def _idle(self) -> None:
        """Something ended: go on with what waits."""
        if self.status != "lost" and self.engine.live:
            self.status = "ready" if self.models else "off"
        if self.status != "ready" or self._recall is not None:
            return
        if self._waiting is not None:
            text, self._waiting = self._waiting, None
            self.ask(text)
        elif self._unmeasured:
            self._unmeasured = False
            self.calibrate()  # a question came between

    def _complain(self, reply: Reply) -> None:
        if not reply.ok:
            text = f"{reply.message} {reply.remedy}".strip()
            self.tell(text, "error")

    # Helpers

    def _send(self, request: Request, done: Callable[[Reply], None] | None = None) -> None:
        if done is not None:
            request = replace(request, id=self._next_id)
            self._jobs[self._next_id] = done
            self._next_id += 1
        self.engine.send(request)

    def _may(self, what: str, *states: Status) -> bool:
        if self._recall is not None:
            return self._refuse("The conversation is still being opened.")
        if self.status in states:
            return True
        return self._refuse(refusal(self.status, what))

    def tell(self, text: str, severity: Severity = "information") -> None:
        """Queue a notice."""
        self.notices.append(Notice(text, severity))

    def _refuse(self, text: str, severity: Severity = "warning") -> bool:
        self.tell(text, severity)
        return False

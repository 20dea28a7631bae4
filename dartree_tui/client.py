"""The app without a screen: an engine, the run it makes, and the conversation around it.

Everything here runs on one thread, the app's. `pump` takes what the engine's thread has queued;
all other methods ask for something and return at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from dartree_core.config import DecodeConfig
from dartree_core.events import Calibrated, LoadProgress, RunStarted, encode
from dartree_core.trace import to_line
from dartree_core.worker_protocol import (
    TREE_SETTINGS,
    Calibrate,
    Cancel,
    Generate,
    Reply,
    Set,
)
from dartree_tui.compare import Comparison, Side
from dartree_tui.engines import Engine, Lost
from dartree_tui.engines.replay import ReplayEngine
from dartree_tui.jobs import Done
from dartree_tui.loading import Loader, models_of
from dartree_tui.pace import glance_seconds, on_these_cores
from dartree_tui.recall import END
from dartree_tui.settings import Settings
from dartree_tui.store import Turn
from dartree_tui.unfinished import request_for, unfinished
from dartree_tui.vocab import Vocab


class Client(Loader):
    """One user's run.

    Args:
        make_engine: Makes the engine, and another after a loss.
        settings: What the user likes.
        record: Also write the first conversation's trace here.

    Attributes, beside those of `Loader`:
        unsent: A question that came to nothing, to be put back into the prompt.
        lost: Why the worker is gone, while it is.
        complete, trouble: The replay has been read to its end; what went wrong with it.
    """

    def __init__(
        self, make_engine: Callable[[], Engine], settings: Settings, record: Path | None = None
    ) -> None:
        super().__init__(make_engine, settings, record)
        self.unsent: str | None = None
        self.lost: Lost | None = None
        self.complete = False
        self.trouble = ""
        self.comparison: Comparison | None = None
        self._waiting: str | None = None
        self._unmeasured = False
        self._go_on = False
        self._configured: tuple[object, object, DecodeConfig | None] = (None, None, None)

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

    def restart(self, go_on: bool = False) -> None:
        """A new worker in place of the lost one; conversation, trees and prompt stay.

        With `go_on`, it goes on with the answer that was cut off, if one was.
        """
        self._reconnect()
        self.lost = None
        self._go_on = go_on and self.cut_off
        self.engine.start(self.intake)
        self.load()

    # Requests

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
        self._leave_foreign_trees()

        def undo() -> None:
            self.conversation.take_back()
            self.unsent = text

        self._generate(text, undo)
        return True

    def _generate(self, text: str, undo: Callable[[], None]) -> None:
        """Have a question answered; `undo` is called when nothing comes of it."""
        self.conversation.say(text)
        self.status = "busy"
        request = Generate(
            self.conversation.prompt(),
            config=self.config.to_dict(),
            glance_seconds=glance_seconds(self.shares_cores),
        )
        turns = len(self.store.turns)
        self._send(request, lambda reply: self._answered(reply, turns, undo))

    @property
    def config(self) -> DecodeConfig:
        """How the next turn is decoded: the settings over what the loaded model asks for."""
        settings, models = self.settings.decode, self.models
        if settings is not self._configured[0] or models is not self._configured[1]:
            # Made once: every frame looks at it.
            config = settings.to_config(models.get("sampling") or {})
            self._configured = settings, models, config
        found = self._configured[2]
        assert found is not None
        return found

    @property
    def cut_off(self) -> bool:
        """True when the newest answer broke off because the worker failed or was lost."""
        turn = unfinished(self.store)
        return turn is not None and turn.failed is not None and self._foreign is None

    def go_on(self) -> bool:
        """Let the model go on with an answer that was cut off, stopped, or met the limit."""
        if not self._may("go on", "ready"):
            return False
        turn = unfinished(self.store)
        if turn is None or self.conversation.answered != turn.index:
            return self._refuse("The last answer is whole; there is nothing to go on with.")
        if self._foreign is not None:
            return self._refuse(
                f"The last answer is {self._foreign}'s, and the loaded model reads other tokens. "
                "ctrl+r asks it again."
            )
        self.store.going_on = turn
        self.status = "busy"
        request = replace(
            request_for(self.store, turn, self.settings.decode.max_new_tokens),
            glance_seconds=glance_seconds(self.shares_cores),
        )
        self._send(request, lambda reply: self._went_on(reply, turn))
        return True

    @property
    def shares_cores(self) -> bool:
        """True when the worker decodes on the cores that draw."""
        device = str(self.models.get("device") or "cpu")
        return on_these_cores(getattr(self.engine, "command", ()), device)

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
        self._leave_foreign_trees()
        talk, store = self.conversation, self.store
        before = list(talk.messages)
        text = talk.take_back()
        if text is None:
            talk.messages = before
            return self._refuse("There is no question to ask again.")
        taken = {index for message in before[len(talk.messages) :] for index in message.turns}
        turns = [turn for turn in store.turns if turn.index in taken]
        store.set_replaced(turns, True)

        def undo() -> None:
            talk.messages = before
            store.set_replaced(turns, False)

        self._generate(text, undo)
        return True

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

    def change(self, **changes: Any) -> None:
        """Change decode settings; tree settings reach the running turn, others the next one.

        Raises:
            ConfigError: a value does not validate. Nothing is changed then.
        """
        self.settings = self.settings.changed("decode", **changes)
        now = {name: value for name, value in changes.items() if name in TREE_SETTINGS}
        if now and self.engine.live and self.status not in ("off", "lost"):
            self._send(Set(now), self._complain)

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
        if self.stepping:
            self.step_mode(False)
            self.tell("Step mode is off: both sides run through.")
        self.comparison = Comparison(prompt, (Side(left), Side(right)), Vocab(self._words))
        self.status = "comparing"
        self.comparison.run(self.conversation.system, self._decode_aside, self._compared)
        return True

    def _decode_aside(self, side: Side, request: Generate, done: Done) -> None:
        self._aside(side.store)
        self._send(request, done)

    def _compared(self) -> None:
        self._home()
        self._idle()

    # What comes back

    def pump(self, seconds: float = 0.03) -> bool:
        """Take queued records for at most so long; True when something came."""
        came = False
        if self._recall is not None:
            came = self._recall.pump(seconds)
            if self._recall.over:
                recall, self._recall = self._recall, None
                self._opened(recall)
                self._idle()
        for record, offset in self.intake.take(seconds):
            came = True
            match record:
                case Reply():
                    if not self._jobs.answer(record):
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
        if self.spool.trouble:
            self.tell(self.spool.trouble, "error")
            self.spool.trouble = ""
        return came

    def _ended(self, lost: Lost) -> None:
        if not self.engine.live:
            self.complete = True
            self.trouble = lost.message
            self.store.abandon(END)
            if lost.message:
                self.tell(lost.message, "error")
            return
        self.lost = lost
        self.status = "lost"
        self.stepping = False
        self._sink = self.store
        if self.comparison is not None:
            self.comparison.over = True
        if self._recall is None:  # else what is open is being read, not decoded
            self._broke_off(lost.message)
        self._jobs.fail(lost.message)
        self.status = "lost"
        if self._waiting is not None:
            self.unsent, self._waiting = self._waiting, None

    def _broke_off(self, message: str) -> None:
        """Say of the open turn what the worker could not say any more, also in the trace."""
        failed = self.store.abandon(message)
        if failed is not None:
            self.spool.append(failed, to_line(encode(failed)), {})

    def _loaded(self, reply: Reply) -> None:
        if not reply.ok:
            self._go_on = False
            self._complain(reply)
            if self.lost is None:
                engine = self.settings.engine
                again = f"ctrl+r loads {engine.target or engine.bundle}, f4 others."
                self.tell(f"Nothing is loaded now: {again}")
            if self._waiting is not None:
                self.unsent, self._waiting = self._waiting, None
            return
        self._unmeasured = self.settings.engine.calibrate
        if self.cut_off and not self._go_on:
            self.tell("The last answer was cut off: ctrl+g goes on with it, ctrl+r asks again.")
        self._idle()

    def _calibrated(self, reply: Reply) -> None:
        self._unmeasured = not reply.ok and self._waiting is not None
        if not reply.ok and self._waiting is None:
            self.tell(reply.message, "warning")
        self._idle()

    def _answered(self, reply: Reply, turns: int, undo: Callable[[], None]) -> None:
        turn = self.store.turn if len(self.store.turns) > turns else None
        if turn is not None and turn.text:  # also of a turn that failed: it can be gone on with
            self.conversation.answer(turn.text, turn.index)
            self._keep_saved()
        else:
            undo()
        self._over(reply)

    def _went_on(self, reply: Reply, before: Turn) -> None:
        turn = self.store.turn
        if turn is not None and turn is not before and turn.text:
            self.conversation.go_on(turn.text, turn.index)
            self._keep_saved()
        self.store.going_on = None
        self._over(reply)

    def _over(self, reply: Reply) -> None:
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
            if self._foreign is None:
                self.ask(text)
            else:
                self.unsent = text  # asking leaves the trees: not while someone may look at them
        elif self._go_on:
            self._go_on = False
            self.go_on()
        elif self._unmeasured:
            self._unmeasured = False
            self.calibrate()  # a question came between

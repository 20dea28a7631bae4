"""The engine as a child process: requests in, events out, one JSON object a line.

Decoding runs in the main thread. Requests are read in a thread of their own, so that a turn can
be cancelled, held, stepped and retuned while it decodes, and so that a closed stdin ends the
process whatever it is doing.
"""

from __future__ import annotations

import gc
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any, Protocol, TypeAlias

from dartree_core.config import DecodeConfig, TreeConfig
from dartree_core.errors import ConfigError, DARTreeError
from dartree_core.events import (
    Calibrated,
    Event,
    LoadProgress,
    RoundDone,
    RunFailed,
    TurnFinished,
)
from dartree_core.gate import Gate
from dartree_core.glances import Glances
from dartree_core.worker_protocol import (
    TREE_SETTINGS,
    Calibrate,
    Cancel,
    Generate,
    Load,
    Pause,
    Reply,
    Request,
    RequestError,
    RequestId,
    Reset,
    Resume,
    Set,
    Shutdown,
    Step,
    decode_request,
)

log = logging.getLogger(__name__)

EXIT_GRACE = 1.0
"""Seconds between the end of stdin and a hard exit, for work that does not look up."""

CALIBRATION_PROMPT = list(range(1, 17))
"""Token ids, so that models without a tokenizer can be measured; what they say is no matter."""
WARM_UP_ROUNDS = 3
"""Rounds left out of a calibration: allocations and caches settle in them."""


class Session(Protocol):
    """What the worker needs of a decoding session.

    Attributes:
        watched: Asked before each round whether to tell its stages, if settings want them told.
    """

    watched: Callable[[], bool]

    def cancel(self) -> None:
        """End the running turn soon; may be called from any thread."""

    def retune(self, tree: TreeConfig) -> None:
        """Use these tree settings from the next round on; may be called from any thread."""


class Decoder(Protocol):
    """What the worker needs of a loaded decoder."""

    def session(self) -> Any:
        """A new conversation."""

    def stream(
        self,
        prompt: Any,
        config: DecodeConfig,
        *,
        session: Any,
        raw: bool = False,
        thinking: bool | None = None,
    ) -> Iterator[Event]:
        """Decode one turn."""


Loader: TypeAlias = Callable[[Load, Callable[[LoadProgress], None]], tuple[Decoder, dict[str, Any]]]
Emit: TypeAlias = Callable[[Event | Reply], None]
Work: TypeAlias = Load | Generate | Calibrate


class Worker:
    """Serves one stream of requests.

    Args:
        load: Makes a decoder, and says what it is made of.
        emit: Writes events and replies; called from both threads.
    """

    def __init__(self, load: Loader, emit: Emit) -> None:
        self._load = load
        self._emit = emit
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._busy = ""
        self._closing = False
        self._gate = Gate()
        self._decoder: Decoder | None = None
        self._session: Any = None
        self._running: Session | None = None
        self._cancelled = False
        self._config = DecodeConfig()
        self._turn_config = self._config

    # Requests, read in their own thread

    def read(self, lines: Iterable[bytes]) -> None:
        """Serve requests until the lines end or one of them is a shutdown, then close."""
        try:
            for line in lines:
                if not line.strip():
                    continue
                if not self._serve(line):
                    break
        finally:
            self.close()

    def close(self) -> None:
        """End the running turn and let `run` return; safe to call twice, from any thread."""
        with self._lock:
            self._closing = True
            self._cancel()
        self._work.put(None)

    def _serve(self, line: bytes) -> bool:
        request: Request | None = None
        try:
            request = decode_request(line)
            if isinstance(request, Shutdown):
                self._emit(Reply(request.id, "shutdown"))
                return False
            result = self._admit(request)
            if result is not None:
                self._emit(Reply(request.id, _op(request), result=result))
        except RequestError as error:
            self._emit(Reply(error.id, error.op, False, error.message, error.remedy))
        except DARTreeError as error:
            self._emit(Reply(*_names(request), False, error.message, error.remedy))
        except Exception as error:
            # Whatever one line does, the worker outlives it, and so does the running turn.
            log.exception("a request failed")
            message = f"The request failed: {type(error).__name__}: {error}".rstrip(": ")
            remedy = "The worker's log has the details."
            self._emit(Reply(*_names(request), False, message, remedy))
        return True

    def _admit(self, request: Request) -> dict[str, Any] | None:
        """Serve an immediate request, or queue work; None when the reply comes later."""
        match request:
            case Pause():
                self._gate.hold()
            case Resume():
                self._gate.let_go()
            case Step():
                self._gate.step(request.by)
            case Cancel():
                with self._lock:
                    self._cancel()
                    return {"cancelled": self._busy}
            case Set():
                return self._set(request)
            case Reset():
                with self._lock:
                    self._refuse_if_busy(request)
                    self._session = None
                return {}
            case Load() | Generate() | Calibrate():
                self._enqueue(request)
                return None
            case _:
                pass
        return {"held": self._gate.held}

    def _enqueue(self, request: Work) -> None:
        op = _op(request)
        with self._lock:
            self._refuse_if_busy(request)
            if self._decoder is None and not isinstance(request, Load):
                raise RequestError(
                    f"No model is loaded, so there is nothing to {op} with.",
                    'Send {"op": "load"} first and wait for its reply.',
                    request.id,
                    op,
                )
            self._busy = op
            self._cancelled = False
            self._gate.arm()
        self._work.put(request)

    def _refuse_if_busy(self, request: Request) -> None:
        """With the lock held."""
        if self._busy:
            raise RequestError(
                f"The worker is busy with {self._busy}, so it cannot {_op(request)} now.",
                "Wait for its reply, or cancel it first.",
                request.id,
                _op(request),
            )

    def _cancel(self) -> None:
        """With the lock held."""
        self._cancelled = True
        self._gate.release()
        if self._running is not None:
            self._running.cancel()

    def _set(self, request: Set) -> dict[str, Any]:
        applies = dict.fromkeys(request.changes, "next turn")
        now = {k: v for k, v in request.changes.items() if k in TREE_SETTINGS}
        with self._lock:
            try:
                config = self._config.with_changes(**request.changes)
                if self._running is not None and now:
                    turn_config = self._turn_config.with_changes(**now)
                    self._running.retune(turn_config.tree)
                    self._turn_config = turn_config
                    applies.update(dict.fromkeys(now, "next round"))
            except TypeError as error:
                raise RequestError(
                    f"set: a value is of the wrong type: {error}.",
                    'For example {"budget": 8}.',
                    request.id,
                    "set",
                ) from error
            self._config = config  # only what was accepted as a whole
        return {"applies": applies}

    # Work, done in the main thread

    def run(self) -> None:
        """Do what is asked until `close`."""
        while (request := self._work.get()) is not None:
            try:
                self._refuse_if_closing(request)
                reply = Reply(request.id, _op(request), result=self._do(request))
            except (ConfigError, RequestError) as error:
                reply = Reply(request.id, _op(request), False, error.message, error.remedy)
            except DARTreeError as error:
                reply = self._failed(request, error.message, error.remedy, error)
            except Exception as error:
                log.exception("%s failed", _op(request))
                reply = self._failed(
                    request,
                    f"{_op(request)} failed: {type(error).__name__}: {error}".rstrip(": "),
                    "The worker's log has the details.",
                    error,
                )
            with self._lock:
                self._busy = ""
                self._running = None
            self._emit(reply)

    def _refuse_if_closing(self, request: Work) -> None:
        """What was queued behind the last request is answered, but not begun."""
        if self._closing:
            raise RequestError("The worker is closing.", id=request.id, op=_op(request))

    def _failed(self, request: Request, message: str, remedy: str, error: Exception) -> Reply:
        if isinstance(request, Generate) and not request.fresh:
            self._session = None  # its caches may stop anywhere
        self._emit(RunFailed(message, remedy, type(error).__name__))
        return Reply(request.id, _op(request), False, message, remedy)

    def _do(self, request: Work) -> dict[str, Any]:
        match request:
            case Load():
                self._decoder = self._session = None  # frees memory before more is taken
                gc.collect()  # a target and its recorded passes hold each other
                decoder, facts = self._load(request, self._emit)
                with self._lock:
                    self._decoder = decoder
                return facts
            case Generate():
                return self._generate(request)
            case Calibrate():
                return self._calibrate(request)

    def _decode(
        self, prompt: Any, config: DecodeConfig, session: Any, **options: Any
    ) -> Iterator[Event]:
        """The turn's events, with the session registered for cancelling."""
        assert self._decoder is not None
        events = self._decoder.stream(prompt, config, session=session, **options)
        with closing(events):  # type: ignore[type-var]
            with self._lock:
                self._running = session
                self._turn_config = config
            for event in events:
                with self._lock:
                    if self._cancelled:
                        session.cancel()  # a cancel that came before the decoder looked
                yield event

    def _generate(self, request: Generate) -> dict[str, Any]:
        assert self._decoder is not None
        config = self._config
        if request.config is not None:
            config = DecodeConfig.from_dict(request.config)
        if request.fresh:
            session = self._decoder.session()
        else:
            session = self._session = self._session or self._decoder.session()
        reason = ""
        session.watcher = Glances(self._gate, request.glance_seconds)
        options = {"raw": request.raw, "thinking": request.thinking}
        for event in self._decode(request.prompt, config, session, **options):
            self._emit(event)
            if isinstance(event, TurnFinished):
                reason = event.reason
            self._gate.after(event)
        return {"reason": reason}

    def _calibrate(self, request: Calibrate) -> dict[str, Any]:
        assert self._decoder is not None
        count = WARM_UP_ROUNDS + request.tokens
        config = DecodeConfig(method="ar", max_new_tokens=count, ignore_eos=True)
        start, tokens, rounds = 0.0, 0, 0
        session = self._decoder.session()
        for event in self._decode(CALIBRATION_PROMPT, config, session):
            if isinstance(event, RoundDone):
                rounds += 1
                if rounds == WARM_UP_ROUNDS:
                    start, tokens = time.perf_counter(), 0
                tokens += len(event.tokens) if rounds > WARM_UP_ROUNDS else 0
                seconds = time.perf_counter() - start
        if tokens == 0:
            raise RequestError("The calibration was cancelled.", id=request.id, op="calibrate")
        done = Calibrated("ar", tokens / seconds, tokens, seconds)
        self._emit(done)
        return {"tokens_per_second": round(done.tokens_per_second, 4)}


def _op(request: Request) -> str:
    return type(request).__name__.lower()


def _names(request: Request | None) -> tuple[RequestId, str]:
    """Id and operation for a reply; nothing where the request could not even be read."""
    return (None, "") if request is None else (request.id, _op(request))

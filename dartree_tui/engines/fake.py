"""The real worker on a fake decoder, as an engine. For tests only."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from dartree_core.errors import CapacityError
from dartree_core.events import Event, LoadProgress
from dartree_core.pieces import TokenText
from dartree_core.trace import Recorder, to_line
from dartree_core.worker import Worker
from dartree_core.worker_protocol import Load, Reply, Request, encode_reply, encode_request
from dartree_tui.engines.fake_decoder import FakeDecoder
from dartree_tui.engines.intake import Intake


class FakeEngine:
    """The real `Worker` on a fake decoder, in two threads of this process.

    Args:
        decoder: What decodes.
        load_seconds: How long loading takes; progress is reported ten times.
        fail_load: Refuse to load, with this message.
    """

    live = True
    label = "fake"

    def __init__(
        self, decoder: FakeDecoder | None = None, load_seconds: float = 0.0, fail_load: str = ""
    ) -> None:
        self.decoder = decoder or FakeDecoder()
        self._load_seconds = load_seconds
        self._fail_load = fail_load
        self._lines: list[bytes] = []
        self._more = threading.Condition()
        self._worker: Worker | None = None
        self._closed = False
        self._recorder = self._new_recorder()
        self.requests: list[Request] = []

    def _new_recorder(self) -> Recorder:
        return Recorder(lambda token: TokenText(self.decoder.words[token]))

    def start(self, intake: Intake) -> None:
        """Start the worker's threads."""

        def emit(record: Event | Reply) -> None:
            if self._closed:
                return
            for line in self._lines_of(record):
                intake.line(line)

        self._worker = Worker(self._load, emit)
        threading.Thread(target=self._worker.run, daemon=True).start()
        threading.Thread(target=self._worker.read, args=(self._read(),), daemon=True).start()

    def _lines_of(self, record: Event | Reply) -> Iterator[bytes]:
        if isinstance(record, Reply):
            yield to_line(encode_reply(record))
            return
        yield from self._recorder.lines(record).splitlines(keepends=True)

    def _load(
        self, request: Load, progress: Callable[[LoadProgress], None]
    ) -> tuple[FakeDecoder, dict[str, Any]]:
        for done in range(11):
            progress(LoadProgress("fake weights", done, 10, "tensors"))
            time.sleep(self._load_seconds / 10)
        if self._fail_load:
            raise CapacityError(self._fail_load, "Choose a smaller model.")
        self._recorder = self._new_recorder()  # tokens of another model have other texts
        return self.decoder, self.decoder.facts

    def send(self, request: Request) -> None:
        """Queue a request."""
        self.requests.append(request)
        with self._more:
            self._lines.append(encode_request(request).encode())
            self._more.notify()

    def _read(self) -> Iterator[bytes]:
        while True:
            with self._more:
                self._more.wait_for(lambda: self._lines or self._closed)
                if self._closed:
                    return
                line = self._lines.pop(0)
            yield line

    def close(self) -> None:
        """End both threads."""
        with self._more:
            self._closed = True
            self._more.notify()
        if self._worker is not None:
            self._worker.close()

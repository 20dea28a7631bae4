"""A recorded run as an engine: what was, in order, as fast as it can be read."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import BinaryIO

from dartree_core.errors import TraceError
from dartree_core.trace import EventDecoder
from dartree_core.trace.reader import ByteLines, open_source, read_header
from dartree_core.worker_protocol import Request
from dartree_tui.engines.intake import Intake, Lost
from dartree_tui.spool import Spool


class ReplayEngine:
    """Delivers a trace file, plain or compressed, or a stream that may still be growing.

    Args:
        source: A file's path, or an open binary stream such as a pipe.
        addressed: Tell where each line lies, if it can be told. Off where the lines are kept
            elsewhere.

    Attributes:
        whole: True for a file, False for a stream that may still grow.

    Raises:
        TraceError: the file cannot be read, is no trace, or has another major schema version.
            A stream is judged only when its first line comes.
    """

    live = False

    def __init__(self, source: Path | BinaryIO, addressed: bool = True) -> None:
        self.name, self._file, self._owned = open_source(source)
        self._lines = ByteLines(self._file, self.name)
        self._first: bytes | None = None
        self._closing = False
        self.label = "replay of stdin"
        self.whole = isinstance(source, Path)
        if isinstance(source, Path):
            self.label = f"replay of {source.name}"
            self._first = next(iter(self._lines), b"")
            try:
                read_header(EventDecoder(self.name), self._first)
            except BaseException:
                self._file.close()
                raise
        self._addressed = addressed and isinstance(source, Path) and not self._lines.packed

    def spool(self) -> Spool:
        """A spool fit for this trace: the file itself where its lines can be addressed."""
        return Spool(Path(self.name), existing=True) if self._addressed else Spool()

    def start(self, intake: Intake) -> None:
        """Begin to read, in a thread."""
        threading.Thread(target=self._read, args=(intake,), daemon=True).start()

    def send(self, request: Request) -> None:
        """A recording answers nothing."""

    def close(self) -> None:
        """Stop reading. A read that waits for a pipe is left to its daemon thread."""
        self._closing = True

    def _read(self, intake: Intake) -> None:
        offset = 0
        try:
            if self._first is None:
                self._first = next(iter(self._lines), b"")
                read_header(EventDecoder(self.name), self._first)
            line: bytes | None = self._first
            while line is not None and not self._closing:
                if not intake.line(line, offset if self._addressed else None):
                    return
                offset += len(line)
                line = next(iter(self._lines), None)
        except TraceError as error:
            intake.end(Lost(str(error)))
            return
        finally:
            if self._owned:
                self._file.close()
        if not self._closing:
            intake.end(Lost())

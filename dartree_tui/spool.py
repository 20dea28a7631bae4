"""The run on disk: every event appended as a line, any of them read back by its offset.

Memory holds the newest rounds only; this file holds them all. It is a trace, and what recording
and saving a conversation copy.
"""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, BinaryIO

from dartree_core.errors import TraceError
from dartree_core.events import Event, RoundDone, RunStarted
from dartree_core.pieces import TokenText
from dartree_core.trace import EventDecoder, open_private, token_ids, vocab_line


class Spool:
    """An append-only trace. One thread appends while others read.

    A disk that fills up ends no run: `trouble` then says what is not kept any more.

    Args:
        path: The file; None makes a temporary one, which goes away with the process.
        record: Also write every line here, compressed when the name ends in `.gz`.
        existing: Read `path` as it is; nothing can be appended.

    Attributes:
        trouble: What cannot be written or read any more, for whoever tells the user and clears it.

    Raises:
        TraceError: a file cannot be opened.
    """

    def __init__(
        self, path: Path | None = None, *, record: Path | None = None, existing: bool = False
    ) -> None:
        self._temporary = path is None
        self._told: set[int] = set()
        self._lock = threading.Lock()
        self._out: BinaryIO | None = None
        self._mirrors: list[IO[bytes]] = []
        self._end = 0
        self._early: list[bytes] = []
        self._short = False
        self._readable = True
        self.trouble = ""
        try:
            if record is not None:  # first: where it fails, no temporary file is left behind
                file = open_private(record)
                if record.suffix == ".gz":
                    packed = gzip.GzipFile(filename="", fileobj=file, mode="wb")
                    self._mirrors.append(packed)  # type: ignore[arg-type]
                self._mirrors.append(file)
            if path is None:
                handle, name = tempfile.mkstemp(prefix="dartree-", suffix=".jsonl")
                os.close(handle)
                path = Path(name)
            self.path, self._record = path, record
            self._out = None if existing else open_private(path)
            self._in = path.open("rb")
            if self._temporary and os.name == "posix":
                path.unlink()  # open files keep their content, and nothing is left after a crash
        except OSError as error:
            raise TraceError(
                f"Cannot open {error.filename or path}: {error.strerror}.",
                "Choose another file or folder, or change its rights.",
            ) from error

    @property
    def keeps(self) -> bool:
        """True while what is appended can be read back."""
        return self._end > 0 and not self._short

    def append(self, event: Event, raw: bytes, vocab: Mapping[int, TokenText]) -> int:
        """Write an event's line and, before it, texts of tokens this file has not named yet.

        A header opens the file: what comes before it (a measured baseline) is written after it.

        Args:
            event: The event.
            raw: Its line, as it came.
            vocab: Token texts known so far.

        Returns:
            Where the event's line starts.
        """
        with self._lock:
            words = self._words(set(token_ids(event)), vocab)
            if not raw.endswith(b"\n"):
                raw += b"\n"
            if isinstance(event, RunStarted):
                offset = self._end
                self._write(b"".join((raw, words, *self._early)))
                self._early.clear()
            elif self._end == 0:
                offset = -1
                self._early.append(words + raw)
            else:
                offset = self._end + len(words)
                self._write(words + raw)
            return offset

    def append_unread(self, raw: bytes, vocab: Mapping[int, TokenText]) -> None:
        """Write a line of the run, between others, that nobody had to read.

        Which tokens it mentions is not known, so all texts known by now come before it.
        """
        with self._lock:
            told = len(self._told) == len(vocab)
            words = b"" if told else self._words(set(vocab), vocab)
            if self._end == 0:
                self._early.append(words + raw)
            else:
                self._write(words + raw)

    def _words(self, ids: set[int], vocab: Mapping[int, TokenText]) -> bytes:
        """A line with the texts of those ids this file has not named yet, if there are any."""
        new = {t for t in ids - self._told if t in vocab}
        if not new:
            return b""
        self._told |= new
        return vocab_line({t: vocab[t] for t in sorted(new)})

    def _write(self, data: bytes) -> None:
        try:
            if self._out is not None and not self._out.closed:
                self._out.write(data)
        except OSError as error:
            self._close(self._out)
            self._short = True
            self.trouble = (
                f"The run cannot be kept on disk: {error.strerror}. The chat goes on, but older "
                "rounds cannot be shown again, and saving keeps the words alone."
            )
        self._end += len(data)
        try:
            if self._mirrors:
                self._mirrors[0].write(data)
            for mirror in self._mirrors:
                mirror.flush()
        except OSError as error:
            self._close(*self._mirrors)
            self._mirrors.clear()
            self.trouble = (
                f"{self._record} cannot be written: {error.strerror}. The recording ends here; "
                "the chat goes on."
            )

    def _written(self) -> None:
        """Bring what is buffered into the file, with the lock held, before it is read.

        Raises:
            OSError: there is no room for it.
        """
        if self._out is not None and not self._out.closed:
            self._out.flush()

    def round(self, offset: int) -> RoundDone:
        """The round whose line starts at `offset`.

        Raises:
            TraceError: the file was changed or removed behind our back, or is not all there.
        """
        try:
            return self._round(offset)
        except TraceError as error:
            if self._readable:
                self._readable, self.trouble = False, str(error)
            raise

    def _round(self, offset: int) -> RoundDone:
        try:
            with self._lock:
                self._written()
                self._in.seek(offset)
                line = self._in.readline()
        except (OSError, ValueError) as error:
            raise TraceError(f"{self.path} cannot be read: {error}.") from error
        event = EventDecoder(str(self.path)).event(line)
        if not isinstance(event, RoundDone):
            raise TraceError(
                f"{self.path} no longer holds the round it held.", "Open the trace again."
            )
        return event

    def copy_to(self, path: Path) -> None:
        """Copy everything so far to `path`, private, replacing it in one move.

        Raises:
            OSError: it cannot be written, or the run is not all here.
        """
        if self._short:
            raise OSError(f"{path} cannot be written: part of the run could not be kept.")
        part = path.with_name(path.name + ".part")
        with self._lock, open_private(part) as out:
            self._written()
            self._in.seek(0)
            shutil.copyfileobj(self._in, out)
            out.flush()
            os.fsync(out.fileno())
        os.replace(part, path)

    def close(self) -> None:
        """Close the files; a temporary one is removed."""
        with self._lock:
            self._close(self._out, *self._mirrors, self._in)
            self._mirrors.clear()
            if self._temporary and os.name != "posix":
                self.path.unlink(missing_ok=True)

    def _close(self, *files: IO[bytes] | None) -> None:
        for file in files:
            with suppress(OSError):
                if file is not None:
                    file.close()


def numbered(path: Path | None, number: int) -> Path | None:
    """Where the next recording goes: `run.jsonl.gz`, then `run-2.jsonl.gz` beside it."""
    if path is None or number == 1:
        return path
    stem, dot, rest = path.name.partition(".")
    return path.with_name(f"{stem}-{number}{dot}{rest}")

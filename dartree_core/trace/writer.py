"""Writing a trace, such that whatever ends the process leaves a readable file."""

from __future__ import annotations

import gzip
import os
import stat
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from dartree_core.errors import TraceError
from dartree_core.events import Event, RunStarted
from dartree_core.pieces import TokenTextFn
from dartree_core.trace.records import Recorder


def open_private(path: Path) -> BinaryIO:
    """Open `path` for writing, emptied, readable by its owner alone even if it existed.

    Raises:
        OSError: it cannot be opened.
    """
    flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_BINARY", 0)
    handle = os.open(path, flags, 0o600)
    try:
        # Pipes and devices have no content to protect, and their mode is not ours to change.
        if stat.S_ISREG(os.fstat(handle).st_mode):
            if hasattr(os, "fchmod"):
                os.fchmod(handle, 0o600)
            os.ftruncate(handle, 0)
        return os.fdopen(handle, "wb")
    except BaseException:
        os.close(handle)
        raise


class TraceWriter:
    """Writes events to a file, line by line; compressed when the name ends in `.gz`.

    Every event is flushed, compressed or not, so a killed process loses at most the one it was
    writing. The file has mode 0600, since it holds prompts.

    Args:
        path: Where to write; an existing file is replaced.
        token_text: Token id to text, see `dartree_core.text.TokenTexts`.

    Raises:
        TraceError: the file cannot be created or written.
    """

    def __init__(self, path: str | os.PathLike[str], token_text: TokenTextFn) -> None:
        self.path = Path(path)
        self._recorder = Recorder(token_text)
        self._begun = False
        try:
            self._file = open_private(self.path)
        except OSError as error:
            raise self._fault(error) from error
        self._out: BinaryIO | gzip.GzipFile = self._file
        if self.path.suffix == ".gz":
            self._out = gzip.GzipFile(filename="", fileobj=self._file, mode="wb")

    def write(self, event: Event) -> None:
        """Append an event.

        Raises:
            TraceError: the disk is full or the file otherwise gone.
            ValueError: the first event is not `RunStarted`.
        """
        if not self._begun and not isinstance(event, RunStarted):
            raise ValueError(f"a trace starts with RunStarted, not {type(event).__name__}")
        self._begun = True
        try:
            self._out.write(self._recorder.lines(event))
            self._out.flush()
        except OSError as error:
            raise self._fault(error) from error

    def close(self) -> None:
        """Finish the file; safe to call twice.

        Raises:
            TraceError: what was buffered could not be written.
        """
        try:
            try:
                self._out.close()
            finally:
                self._file.close()  # a GzipFile leaves the file under it open
        except OSError as error:
            raise self._fault(error) from error

    def _fault(self, error: OSError) -> TraceError:
        return TraceError(
            f"Cannot write the trace {self.path}: {error.strerror or error}.",
            "Choose a file in a writable folder with enough space.",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

"""Reading a trace from its beginning, or a stream while it grows."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import orjson

from dartree_core.errors import TraceError
from dartree_core.events import SCHEMA_VERSION, Event, RunStarted, decode
from dartree_core.pieces import TokenText
from dartree_core.trace.check import problem
from dartree_core.trace.records import VOCAB, decode_vocab
from dartree_core.trace.skim import skim

_CHUNK = 1 << 16
_GZIP_MAGIC = b"\x1f\x8b"


class EventDecoder:
    """Turns lines into events, by the rules every reader of a trace shares.

    Attributes:
        vocab: Token id to text, as told so far.
        cut: True once a last, unfinished line was met; it has been left out.
        line: Number of the last line read, from 1.
    """

    def __init__(self, name: str = "The stream", line: int = 0) -> None:
        self.name = name
        self.line = line
        self.vocab: dict[int, TokenText] = {}
        self.cut = False

    def events(self, lines: Iterable[bytes | str]) -> Iterator[Event]:
        """Events of the lines, as they come; for a growing stream the iterable may block.

        Raises:
            TraceError: a line is damaged (but not the last one, when it lacks its line break),
                or a header has another major schema version.
        """
        for line in lines:
            if self.cut:  # more came after a line without an end: it was damage after all
                raise self.fault("is not valid JSON")
            event = self.event(line)
            if event is not None:
                yield event

    def event(self, line: bytes | str, *, skimmed: bool = False) -> Event | None:
        """The event of the next line; None for other records, blank lines and a cut line.

        Args:
            line: With its line break.
            skimmed: A round's tree need not be ready to be shown, see `skim.Skimmed`.
        """
        self.line += 1
        if not line.strip():
            return None
        record = self._parse(line)
        if record is not None and skimmed and (tree := skim(record.get("tree"))) is not None:
            record["tree"] = tree
        return None if record is None else self._decode(record)

    def fault(self, what: str) -> TraceError:
        """The error for the current line."""
        return TraceError(
            f"{self.name}: line {self.line} {what}.",
            "The file was damaged or edited; the lines before this one can be kept.",
        )

    def _parse(self, line: bytes | str) -> dict[str, Any] | None:
        try:
            record = loads(line)
        except (ValueError, RecursionError) as error:
            if line[-1:] not in (b"\n", "\n"):
                self.cut = True
                return None
            raise self.fault("is not valid JSON") from error
        if not isinstance(record, dict):
            raise self.fault("is not a JSON object")
        return record

    def _decode(self, record: dict[str, Any]) -> Event | None:
        if record.get("kind") == RunStarted.__name__:
            self._check_schema(record.get("schema"))
        try:
            if record.get("kind") == VOCAB:
                self.vocab.update(decode_vocab(record))
                return None
            event = decode(record)
        except TraceError as error:
            raise self.fault(f"is unusable: {error.message.rstrip('.')}") from error
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise self.fault(f"is unusable: {error}") from error
        wrong = None if event is None else problem(event)
        if wrong is not None:
            raise self.fault(f"is an unusable {record['kind']} record: {wrong}")
        return event

    def _check_schema(self, schema: object) -> None:
        ours = SCHEMA_VERSION.partition(".")[0]
        if not isinstance(schema, str) or not schema.partition(".")[0].isdecimal():
            raise self.fault("is a header without a schema version")
        if schema.partition(".")[0] != ours:
            raise TraceError(
                f"{self.name} has schema version {schema}; this version of DARTree reads {ours}.x.",
                "Open it with the version that recorded it, or record the run again.",
            )


class TraceReader:
    """Events of a trace file, front to back, once.

    Args:
        source: A path, or a binary file such as `sys.stdin.buffer`; gzip is recognised.

    Attributes:
        header: The first event, read at once.

    Raises:
        TraceError: the file cannot be read, is no trace, or has another major schema version;
            while iterating, also when a line is damaged.
    """

    def __init__(self, source: str | os.PathLike[str] | BinaryIO) -> None:
        self.name, self._file, self._owned = open_source(source)
        self._decoder = EventDecoder(self.name)
        self._lines = ByteLines(self._file, self.name)
        try:
            self.header = read_header(self._decoder, next(iter(self._lines), b""))
        except BaseException:
            self.close()
            raise

    @property
    def vocab(self) -> dict[int, TokenText]:
        """Token id to text, as far as read."""
        return self._decoder.vocab

    @property
    def cut(self) -> bool:
        """True when the file was seen to end in the middle of a line or of its compression."""
        return self._decoder.cut or self._lines.cut

    def __iter__(self) -> Iterator[Event]:
        yield self.header
        yield from self._decoder.events(self._lines)

    def close(self) -> None:
        """Close the file, if this reader opened it."""
        if self._owned:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def loads(line: bytes | str) -> Any:
    """The value of a line of JSON.

    Raises:
        ValueError: it is none. NaN and halves of surrogate pairs are let through: other programs
            write them.
        RecursionError: it is nested without measure.
    """
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return json.loads(line)


def read_header(decoder: EventDecoder, line: bytes) -> RunStarted:
    """Decode a trace's first line.

    Raises:
        TraceError: it is not a header, or of another major schema version.
    """
    if not line:
        raise TraceError(
            f"{decoder.name} is empty.", "Was the run ended before it began? Record it again."
        )
    try:
        record = loads(line)
    except (ValueError, RecursionError):
        record = None
    if record is None and line.startswith(b"{") and not line.endswith(b"\n"):
        raise TraceError(
            f"{decoder.name} ends within its first line, so nothing in it can be read.",
            "Record the run again.",
        )
    if not isinstance(record, dict) or record.get("kind") != RunStarted.__name__:
        raise TraceError(
            f"{decoder.name} is not a trace: its first line is not a run header.",
            "Give a file that DARTree recorded.",
        )
    header = decoder.event(line)
    assert isinstance(header, RunStarted)
    return header


def open_source(source: str | os.PathLike[str] | BinaryIO) -> tuple[str, BinaryIO, bool]:
    """A name for messages, the open file, and whether it was opened here.

    Raises:
        TraceError: the path cannot be opened.
    """
    if not isinstance(source, str | os.PathLike):
        name = getattr(source, "name", None)
        return name if isinstance(name, str) else "The stream", source, False
    path = Path(source)
    try:
        return str(path), path.open("rb"), True
    except OSError as error:
        raise read_fault(str(path), error) from error


def read_fault(name: str, error: OSError) -> TraceError:
    """The error for a file that cannot be read."""
    return TraceError(
        f"Cannot read {name}: {error.strerror or error}.", "Check the name and its permissions."
    )


class ByteLines:
    """Lines of a binary file, unpacked where it is gzip, up to wherever it breaks off.

    Attributes:
        cut: True once a compressed file was seen to end too early.
        packed: Whether the file is gzip; known once a line was read.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.cut = False
        self.packed = False
        self._name = name
        self._lines = self._read(file)

    def __iter__(self) -> Iterator[bytes]:
        return self._lines

    def _read(self, file: BinaryIO) -> Iterator[bytes]:
        try:
            # Not a line: packed bytes may go on for long without a newline among them.
            first = file.read(1)
            if first == _GZIP_MAGIC[:1]:
                first += file.read(1)
            self.packed = first == _GZIP_MAGIC
            if self.packed:
                yield from _split(self._unpack(first, file))
            elif first:
                yield first if first == b"\n" else first + file.readline()
                yield from file
        except OSError as error:
            raise read_fault(self._name, error) from error

    def _unpack(self, data: bytes, file: BinaryIO) -> Iterator[bytes]:
        unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        while data:
            if unpacker.eof:  # gzip files may be joined end to end
                unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
            try:
                yield unpacker.decompress(data)
            except zlib.error as error:
                raise TraceError(
                    f"{self._name} is damaged: {error}.", "Copy it again from where it came."
                ) from error
            data = unpacker.unused_data or _next_chunk(file)
        self.cut = not unpacker.eof


def _next_chunk(file: BinaryIO) -> bytes:
    """What is there by now: waits for data, but not for a full chunk, so a pipe stays live."""
    read1 = getattr(file, "read1", None)
    chunk: bytes = file.read(_CHUNK) if read1 is None else read1(_CHUNK)
    return chunk


def _split(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Chunks cut at line breaks, which stay; the last line may lack its own."""
    parts: list[bytes] = []
    for chunk in chunks:
        *whole, rest = chunk.split(b"\n")
        for line in whole:
            yield b"".join((*parts, line, b"\n"))
            parts.clear()
        if rest:
            parts.append(rest)
    if parts:
        yield b"".join(parts)

"""The engine as a child process, here or behind ssh."""

from __future__ import annotations

import os
import queue
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, TypeAlias

import platformdirs

from dartree_core.errors import ConfigError
from dartree_core.worker_protocol import Request, encode_request
from dartree_tui.engines.intake import Intake, Lost

TAIL_LINES = 12

_CHUNK = 1 << 16
"""Bytes read at once, as many as a pipe holds."""
_NAP = 0.04
"""Seconds between two readings of little: waking up for every line would interrupt the decoder
as often."""
_LONG_NAP = 0.2
"""The same while nobody is in a hurry, where the pipe holds what comes meanwhile."""
_ROOM = 1 << 20
"""Bytes that such a pipe holds: a second of the largest trees."""

Start: TypeAlias = Callable[[], "subprocess.Popen[bytes]"]


def default_command() -> list[str]:
    """The worker of this very installation."""
    return [sys.executable, "-m", "dartree_core", "worker"]


def default_log() -> Path:
    """Where a worker's stderr goes."""
    return platformdirs.user_log_path("dartree") / "worker.log"


class ProcessEngine:
    """Runs a worker and speaks with it over its pipes.

    Args:
        command: What to start: a list, or one string as a shell would split it.
        log: File for the worker's stderr; the one of the run before is kept as `.1`.
        launch: Calls the function that starts the child; by default in the caller's thread.

    Raises:
        ConfigError: the string is no command.
    """

    live = True

    def __init__(
        self,
        command: str | Sequence[str] = (),
        log: Path | None = None,
        launch: Callable[[Start], subprocess.Popen[bytes]] | None = None,
    ) -> None:
        parts = _split(command) if isinstance(command, str) else list(command)
        self.command = parts or default_command()
        self.label = "worker" if not parts else shlex.join(parts)
        self.log = log or default_log()
        self._launch = launch or (lambda start: start())
        self._closing = False
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def start(self, intake: Intake) -> None:
        """Start the child; a failure to do so is delivered as `Lost`."""
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            if self.log.exists():
                os.replace(self.log, self.log.with_name(self.log.name + ".1"))
            with open(self.log, "wb", opener=_private) as log:
                self._process = self._launch(partial(_start, self.command, log))
        except OSError as error:
            intake.end(Lost(f"The worker could not be started: {error}."))
            return
        threading.Thread(target=self._read, args=(self._process, intake), daemon=True).start()
        threading.Thread(target=self._write, args=(self._process,), daemon=True).start()

    def send(self, request: Request) -> None:
        """Queue a request; a thread writes it."""
        self._requests.put(encode_request(request).encode() + b"\n")

    def close(self) -> None:
        """Kill the child and all it started."""
        self._closing = True
        self._requests.put(None)
        process = self._process
        if process is None or process.poll() is not None:
            return
        with suppress(OSError):
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.2)

    def tail(self) -> tuple[str, ...]:
        """The last lines of the worker's log."""
        with suppress(OSError):
            with open(self.log, "rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - 8192))
                text = log.read().decode("utf-8", "replace")
            return tuple(line for line in text.splitlines() if line.strip())[-TAIL_LINES:]
        return ()

    def _read(self, process: subprocess.Popen[bytes], intake: Intake) -> None:
        assert process.stdout is not None
        rest = b""
        nap = _LONG_NAP if _widened(process.stdout) else _NAP
        while chunk := process.stdout.read1(_CHUNK):  # type: ignore[attr-defined]
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                intake.later(line + b"\n")
            if len(chunk) < _CHUNK // 4:
                time.sleep(nap if intake.unhurried else _NAP)
        # What is left in `rest` was cut off with everything after it: the end says so.
        code = process.wait()
        if not self._closing:
            how = f"with exit code {code}" if code >= 0 else f"by {_signal_name(-code)}"
            intake.end(Lost(f"The worker ended unexpectedly, {how}.", self.tail()))

    def _write(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        with suppress(OSError, ValueError), process.stdin as pipe:
            while (line := self._requests.get()) is not None:
                pipe.write(line)
                pipe.flush()


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise ConfigError(
            f"The worker's command {command!r} cannot be read: {error}.",
            "Close its quotes, as in --worker 'ssh gpu1 dartree worker'.",
        ) from error


def _start(command: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a child in a session of its own: ctrl+c in our terminal must not reach it, and one
    kill must reach all that it started."""
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        start_new_session=True,
    )


def _widened(pipe: IO[bytes]) -> bool:
    """Let a pipe hold more, where the system can (Linux); False where it cannot."""
    try:
        import fcntl

        fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _ROOM)
    except (ImportError, AttributeError, OSError):
        return False
    return True


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

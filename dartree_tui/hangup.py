"""Ends in good order when a signal says so, and notices a terminal that has gone without one.

A terminal that closes sends SIGHUP to the session it controls. Without a controlling terminal
(some containers and launchers), or with SIGHUP ignored, nothing would end the app, and reading
the dead terminal would keep a core busy for good.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

CHECK_SECONDS = 1.0
"""Between two looks at the terminal."""


def keyboard() -> int | None:
    """The descriptor keys are read from; None where that is no terminal."""
    try:
        fd = sys.__stdin__.fileno() if sys.__stdin__ else None
    except (OSError, ValueError):
        return None
    return fd if fd is not None and os.isatty(fd) else None


def heed(end: Callable[[int], None]) -> None:
    """Have the running loop call `end`, with the exit code, where a signal asks the app to end.

    A signal that whoever started us has ignored (`nohup`) stays ignored.
    """
    loop = asyncio.get_running_loop()
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            with suppress(NotImplementedError):  # no such handlers on Windows
                loop.add_signal_handler(number, end, 128 + number)


def leave() -> None:
    """End as a hang-up ends a program."""
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGHUP)
    os._exit(1)

"""Notices that the terminal has gone where no signal says so.

A terminal that closes sends SIGHUP to the session it controls. Without a controlling terminal
(some containers and launchers), or with SIGHUP ignored, nothing would end the app, and reading
the dead terminal would keep a core busy for good.
"""

from __future__ import annotations

import os
import signal
import sys

CHECK_SECONDS = 1.0
"""Between two looks at the terminal."""


def keyboard() -> int | None:
    """The descriptor keys are read from; None where that is no terminal."""
    try:
        fd = sys.__stdin__.fileno() if sys.__stdin__ else None
    except (OSError, ValueError):
        return None
    return fd if fd is not None and os.isatty(fd) else None


def leave() -> None:
    """End as a hang-up ends a program."""
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGHUP)
    os._exit(1)

"""How long work says how far it is, whoever listens: rich bars, the worker's events, or nobody."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Progress: TypeAlias = Callable[[str, int, int, str], None]
"""`progress(what, done, total, unit)`: `total` 0 is unknown, `unit` is `bytes` or `steps`.

Always called on the thread that asked for the work, so a listener needs no lock.
"""


def silent(what: str, done: int, total: int, unit: str) -> None:
    """Listen to nothing."""


def size_of(folder: Path, *, follow: bool = False) -> int:
    """Bytes of the files below `folder`; files that vanish meanwhile count as nothing.

    Args:
        folder: Where to look; one that is not there has no bytes.
        follow: Count what links point to, instead of the links.
    """
    measure = os.stat if follow else os.lstat
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += measure(os.path.join(root, name)).st_size
            except OSError:
                continue
    return total


def watch(
    work: Callable[[], T],
    folder: Path,
    what: str,
    total: int,
    progress: Progress,
    interval: float = 0.2,
) -> T:
    """Run `work` in a thread and report the bytes that appear below `folder` meanwhile.

    Downloaders draw their own bars in ways that change between versions; what they write to
    disk does not.

    Args:
        work: What to run. Its thread is a daemon, so that Ctrl-C here need not wait for it.
        folder: Where the bytes appear.
        what: The name the listener hears.
        total: Expected bytes, or 0.
        progress: The listener.
        interval: Seconds between two looks.

    Returns:
        What `work` returned.

    Raises:
        BaseException: Whatever `work` raised.
    """
    result: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            result.append(work())
        except BaseException as error:
            failure.append(error)

    before = size_of(folder)
    thread = threading.Thread(target=run, daemon=True, name=f"fetch {what}")
    progress(what, 0, total, "bytes")
    thread.start()
    while thread.is_alive():
        thread.join(interval)
        done = max(0, size_of(folder) - before)
        progress(what, min(done, total) if total else done, total, "bytes")
    if failure:
        raise failure[0]
    return result[0]

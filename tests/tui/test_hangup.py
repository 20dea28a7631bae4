"""A terminal that goes away without a word."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.tui.driving import fake_trace


def started(folder: Path, **options: Any) -> tuple[subprocess.Popen[bytes], int]:
    """The app on a replay, and our end of the pseudo-terminal it runs in."""
    import pty

    trace = fake_trace(folder / "run.jsonl")
    master, slave = pty.openpty()
    app = subprocess.Popen(
        [sys.executable, "-m", "dartree_tui", "--replay", str(trace)],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        **options,
    )
    os.close(slave)
    return app, master


@pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals are POSIX")
def test_the_app_ends_with_a_terminal_that_controls_nothing(tmp_path: Path) -> None:
    """No SIGHUP comes without a controlling terminal; only looking at it tells."""
    app, master = started(tmp_path)
    try:
        assert os.read(master, 64)  # it paints
        os.close(master)
        assert app.wait(60) != 0
    finally:
        app.kill()
        app.wait()


@pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals are POSIX")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_app_in_good_order(tmp_path: Path, number: signal.Signals) -> None:
    # Whoever runs the tests may ignore it, as nohup does, and so would the app.
    app, master = started(tmp_path, preexec_fn=lambda: signal.signal(number, signal.SIG_DFL))
    patience = threading.Timer(60, app.kill)
    patience.start()
    seen = b""
    try:
        while b"REPLAY" not in seen:
            seen += os.read(master, 1 << 16)
        app.send_signal(number)
        with suppress(OSError):  # that is how the other end closes
            while more := os.read(master, 1 << 16):
                seen += more
        assert app.wait(60) == 128 + number
        assert b"\x1b[?1049l" in seen
    finally:
        patience.cancel()
        app.kill()
        app.wait()
        os.close(master)

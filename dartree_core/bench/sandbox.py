"""Running a program that a model wrote, fenced in as far as a child process can be.

The program gets an empty folder, no environment, no input, little memory, time and disk. That
stops accidents, not attacks: it can still read what its user can read and open connections. So
nothing runs unless the user asks for it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from enum import Enum

SECONDS = 10.0
_MEMORY = 1 << 30
_FILE = 1 << 20


class Verdict(Enum):
    """How a program ended."""

    PASSED = "passed"
    FAILED = "failed"
    TIMEOUT = "timeout"


def run_python(program: str, *, seconds: float = SECONDS) -> Verdict:
    """Run a Python program; it passes when it ends by itself with exit code 0.

    Args:
        program: Source text.
        seconds: Most seconds of wall time, and of processor time.
    """
    # Printed last, so that a program which exits early does not count as having passed.
    token = os.urandom(16).hex()
    ending = f"\nprint({token!r}, flush=True)\n"
    with (
        tempfile.TemporaryDirectory(prefix="dartree-", ignore_cleanup_errors=True) as folder,
        tempfile.TemporaryFile() as out,  # a file, since its size can be limited
    ):
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _limits(seconds)],
            cwd=folder,
            env={},
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process.communicate((program + ending).encode(), timeout=seconds)
        except subprocess.TimeoutExpired:
            return Verdict.TIMEOUT
        finally:
            _end(process)
        out.seek(0)
        done = process.returncode == 0 and out.read().endswith(f"{token}\n".encode())
    return Verdict.PASSED if done else Verdict.FAILED


def _limits(seconds: float) -> str:
    """What the child does first: bind itself, then run what it reads."""
    limits = {
        "RLIMIT_CPU": int(seconds) + 1,
        "RLIMIT_AS": _MEMORY,
        "RLIMIT_FSIZE": _FILE,
        "RLIMIT_CORE": 0,
        "RLIMIT_NOFILE": 32,
    }
    return (
        "import sys\n"
        "source = sys.stdin.buffer.read()\n"
        "try:\n"
        "    import resource\n"
        f"    for name, most in {limits!r}.items():\n"
        "        try:\n"
        "            resource.setrlimit(getattr(resource, name), (most, most))\n"
        "        except (AttributeError, OSError, ValueError):\n"
        "            pass\n"
        "except ImportError:\n"
        "    pass\n"
        "exec(compile(source, 'answer.py', 'exec'), {'__name__': '__main__'})\n"
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the program and whatever it started."""
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(OSError):
        process.kill()
    process.wait()

"""Real processes under gloo: started as torchrun starts them, with short lives."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
PATIENCE = 120.0
"""Seconds a busy machine may take for anything; failures show long before."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def environment(rank: int, size: int, port: int, **more: str) -> dict[str, str]:
    return {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": str(ROOT),
        **more,
    }


class Ranks:
    """Two processes that run the same words of Python.

    Attributes:
        processes: By rank.
    """

    def __init__(self, words: Sequence[str], **more: str) -> None:
        port = free_port()
        self.processes = [
            subprocess.Popen(
                [sys.executable, *words],
                env=environment(rank, 2, port, **more),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=ROOT,
            )
            for rank in range(2)
        ]

    def send(self, request: dict[str, Any]) -> None:
        pipe = self.processes[0].stdin
        assert pipe is not None
        pipe.write(json.dumps(request).encode() + b"\n")
        pipe.flush()

    def lines(self) -> Iterator[dict[str, Any]]:
        """Rank 0's output, line by line."""
        pipe = self.processes[0].stdout
        assert pipe is not None
        for line in pipe:
            yield json.loads(line)

    def until(self, **wanted: Any) -> list[dict[str, Any]]:
        """Rank 0's output up to the line with these fields."""
        seen = []
        for line in self.lines():
            seen.append(line)
            if wanted.items() <= line.items():
                return seen
        raise AssertionError(f"rank 0 ended without {wanted}: {self.finish()}")

    def kill(self) -> None:
        """End both at once."""
        for process in self.processes:
            process.kill()

    def finish(self) -> list[tuple[int, str, str]]:
        """Per rank: exit code, what is left of standard output, standard error."""
        deadline = time.monotonic() + PATIENCE
        ends = []
        for process in self.processes:
            out, err = process.communicate(timeout=max(1.0, deadline - time.monotonic()))
            ends.append((process.returncode, out.decode(), err.decode()))
        return ends


@contextmanager
def ranks(*words: str, **more: str) -> Iterator[Ranks]:
    """Two processes, ended at the latest with the block."""
    started = Ranks(words, **more)
    # Pipes are read without a limit: whoever hangs is ended, and the reader sees it.
    limit = threading.Timer(PATIENCE, started.kill)
    limit.start()
    try:
        yield started
    finally:
        limit.cancel()
        started.kill()
        for process in started.processes:
            process.wait()

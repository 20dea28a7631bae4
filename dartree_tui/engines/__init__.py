"""Where events come from: a worker process, a recorded trace, or a fake for tests.

All of them hand raw trace lines to one `Intake` from a thread of their own, and take requests
without ever blocking.
"""

from __future__ import annotations

from typing import Protocol

from dartree_core.worker_protocol import Request
from dartree_tui.engines.intake import Intake, Lost, Record

__all__ = ["Engine", "Intake", "Lost", "Record"]


class Engine(Protocol):
    """A source of events."""

    @property
    def live(self) -> bool:
        """True when it can be asked for more; a replay only has what was recorded."""

    @property
    def label(self) -> str:
        """What it is, for the header: "worker", "ssh gpu1 …", "replay of run.jsonl"."""

    def start(self, intake: Intake) -> None:
        """Begin to deliver. Failures to start are delivered, too, as `Lost`."""

    def send(self, request: Request) -> None:
        """Ask for something; never blocks. Ignored by engines that are not live."""

    def close(self) -> None:
        """Stop at once, whatever is going on; safe to call twice."""

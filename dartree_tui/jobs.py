"""Requests under way, and who waits for their replies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from dartree_core.worker_protocol import Reply, Request

Done: TypeAlias = Callable[[Reply], None]


class Jobs:
    """Numbers requests and finds the caller of each reply."""

    def __init__(self) -> None:
        self._waiting: dict[int, Done] = {}
        self._next = 1

    def number(self, request: Request, done: Done) -> Request:
        """The request with an id; `done` is called with its reply."""
        request = replace(request, id=self._next)
        self._waiting[self._next] = done
        self._next += 1
        return request

    def answer(self, reply: Reply) -> bool:
        """Hand a reply to its caller; False when nobody waits for it."""
        done = self._waiting.pop(reply.id, None) if isinstance(reply.id, int) else None
        if done is None:
            return False
        done(reply)
        return True

    def fail(self, message: str) -> None:
        """No reply will come any more: tell all who wait."""
        waiting, self._waiting = self._waiting, {}
        for done in waiting.values():
            done(Reply(None, "", False, message))

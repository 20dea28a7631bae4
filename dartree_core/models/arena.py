"""Memory with fixed addresses, lent to one conversation at a time.

Recordings hold addresses, so keys and values, inputs and results of static passes live in an
arena. When a conversation ends its arena goes back on the shelf with its recordings, and the next
conversation replays them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import torch

from dartree_core.models.graphs import Graphs


class Sized(Protocol):
    """Anything with room for a number of positions."""

    @property
    def capacity(self) -> int:
        """Positions there is room for."""

    @property
    def nbytes(self) -> int:
        """Bytes of its keys and values."""


A = TypeVar("A", bound=Sized)
_FREE = 2
"""Arenas kept for later; the rest is memory nobody uses."""


class Lease(Generic[A]):
    """The arena a cache has now; ends when the cache is no longer in use."""

    def __init__(self, shelf: Shelf[A]) -> None:
        self._shelf = shelf
        self.arena: A | None = None

    def require(self, capacity: int) -> A:
        """An arena with room for `capacity` positions: the present one, or a larger one.

        What the present one holds is the caller's to copy; it is dropped once replaced.
        """
        if self.arena is not None and self.arena.capacity >= capacity:
            return self.arena
        if self.arena is not None:
            self._shelf.settle()  # its recordings may still be running
        self.arena = self._shelf.take(capacity)
        return self.arena

    def end(self) -> None:
        """Give the arena back."""
        if self.arena is not None:
            self._shelf.put(self.arena)
            self.arena = None


class Shelf(Generic[A]):
    """Makes arenas and keeps free ones.

    Args:
        make: Makes an arena with room for at least so many positions.
        graphs: Waited for before an arena's recordings are dropped.
    """

    def __init__(self, make: Callable[[int], A], graphs: Graphs) -> None:
        self._make = make
        self._graphs = graphs
        self._free: list[A] = []

    def lease(self, owner: object) -> Lease[A]:
        """A lease that ends with `owner`'s life."""
        lease = Lease(self)
        weakref.finalize(owner, lease.end).atexit = False
        return lease

    def take(self, capacity: int) -> A:
        """The smallest free arena with enough room, or a new one.

        Of equals the one used last: conversations in turn then share one set of recordings.
        """
        fitting = [arena for arena in reversed(self._free) if arena.capacity >= capacity]
        if fitting:
            best = min(fitting, key=lambda arena: arena.capacity)
            self._free = [arena for arena in self._free if arena is not best]
            self._keep(_FREE)
            return best
        self._keep(_FREE - 1)
        try:
            return self._make(capacity)
        except torch.OutOfMemoryError:
            if not self._free:
                raise
            self._keep(0)
            return self._make(capacity)

    def _keep(self, most: int) -> None:
        """Drop free arenas beyond `most`; larger ones are of more use than those outgrown."""
        if len(self._free) > most:
            self.settle()
            self._free.sort(key=lambda arena: arena.capacity)
            del self._free[: len(self._free) - most]

    @property
    def idle(self) -> A | None:
        """The largest free arena: what a conversation without one is lent first."""
        return max(self._free, key=lambda arena: arena.capacity, default=None)

    def settle(self) -> None:
        """Wait until no recording is running."""
        self._graphs.settle()

    def put(self, arena: A) -> None:
        """Take an arena back. May run in a garbage collection, so nothing is freed here."""
        self._free.append(arena)

"""Two turns side by side, so that a noisy machine is as noisy for both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dartree_core.engine.decoder import Turn
from dartree_core.events import Event, PrefillDone, RoundDone


def interleave(turns: Sequence[Turn]) -> Iterator[tuple[int, Event]]:
    """Pull whichever turn has emitted the fewest tokens, until all have finished.

    Yields:
        (index of the turn, event).
    """
    emitted = dict.fromkeys(range(len(turns)), 0)
    while emitted:
        index = min(emitted, key=lambda i: (emitted[i], i))
        event = next(turns[index], None)
        if event is None:
            del emitted[index]
            continue
        if isinstance(event, PrefillDone):
            emitted[index] += 1
        elif isinstance(event, RoundDone):
            emitted[index] += len(event.tokens)
        yield index, event

"""Which parts of the screen a frame draws, while something decodes.

A frame costs what it covers. Where there is time for few of them, each shows one part of the
screen anew and the parts take turns: three frames that cost together as much as a whole one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Flag, auto

from dartree_tui.pace import Interval

WORDS_EVERY = 0.25
"""Seconds between two writings of text and figures while something decodes: nobody reads at the
rate at which trees come, and text that changes height makes the whole screen be arranged anew."""


class Part(Flag):
    """Panes that are drawn together, by where they lie.

    Attributes:
        TREE: The round's tree.
        ROUNDS: Its title, and the timeline.
        FIGURES: Node and statistics.
        TEXT: The chat.
    """

    TREE = auto()
    ROUNDS = auto()
    FIGURES = auto()
    TEXT = auto()


ALL = Part.TREE | Part.ROUNDS | Part.FIGURES | Part.TEXT
_TURNS = (Part.TEXT, Part.TREE | Part.ROUNDS, Part.FIGURES)


class Parts:
    """Says what the next frame draws.

    Args:
        clock: Seconds that pass.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._words = Interval(clock)
        self._turn = 0

    def next(self, live: bool, tight: bool) -> Part:
        """What to draw now.

        Args:
            live: Something decodes, and the newest round is on show.
            tight: There is time for few frames; see `Pace`.
        """
        if live and tight:
            self._turn = (self._turn + 1) % len(_TURNS)
            return _TURNS[self._turn - 1]
        self._turn = 0
        return ALL if self._words.due(WORDS_EVERY if live else 0) else Part.TREE

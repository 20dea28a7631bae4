"""Which round is on show, and how far into it: following, frozen, browsing, playing."""

from __future__ import annotations

from dartree_core.errors import TraceError
from dartree_tui.frames import frame, frame_count
from dartree_tui.store import AnyRound, Store

MIN_PLAY_SECONDS = 0.15
"""Shortest time a replayed round stays, so that the eye can follow."""


class Viewpoint:
    """A place in one store. It reads the store and changes nothing in it.

    Attributes:
        shown: What `show` last returned; freezing holds it, however much has come since.
        at: Index of the round on show; None follows the newest one.
        frame: Stage of that round, see `frames`; None shows it finished.
        frozen: True while the view stands still and events keep arriving.
        playing: True while rounds are shown one after another in their own time.
    """

    def __init__(self) -> None:
        self.at: int | None = None
        self.frame: int | None = None
        self.frozen = False
        self.playing = False
        self.shown: tuple[int, AnyRound | None] = (-1, None)
        self._pinned = False
        self._frozen_at = 0
        self._seen = 0
        self._shown_for = 0.0

    @property
    def following(self) -> bool:
        """True while the newest round is shown as it comes."""
        return self.at is None and not self.frozen

    def behind(self, store: Store) -> int:
        """Rounds that came since the view froze."""
        return len(store.marks) - self._frozen_at if self.frozen else 0

    def show(self, store: Store) -> tuple[int, AnyRound | None]:
        """The round to draw, and the index of the finished round it belongs to (-1 for none).

        A round that finished since the last call is shown once before the next one's growth is,
        or the accepted path would hardly ever be seen. One that cannot be read any more is not
        gone to.
        """
        if not self._pinned:
            try:
                self.shown = self._look(store)
            except TraceError:
                self._stay()
        return self.shown

    def _look(self, store: Store) -> tuple[int, AnyRound | None]:
        last = len(store.marks) - 1
        if self.at is not None and 0 <= self.at <= last:
            done = store.round(self.at)
            return self.at, done if self.frame is None else frame(done, self.frame)
        news = len(store.marks) != self._seen
        self._seen = len(store.marks)
        if last >= 0 and (news or store.partial is None):
            return last, store.round(last)
        # A copy: the store goes on building the round, also while the view stands still.
        return last, None if store.partial is None else store.partial.snapshot()

    def _stay(self) -> None:
        """Whatever was to be shown, keep what is on show."""
        self.playing, self.frame = False, None
        self.at = self.shown[0] if self.shown[0] >= 0 else None

    # Moves

    def follow(self) -> None:
        """Back to the newest round, whatever comes."""
        self.at = self.frame = None
        self.frozen = self.playing = self._pinned = False

    def freeze(self, store: Store) -> None:
        """Stand still on what is shown now."""
        if self.frozen:
            return
        self.frozen = True
        self.playing = False
        self._frozen_at = len(store.marks)
        if self.at is None:
            self._pinned = True
            self.at = self.shown[0] if self.shown[0] >= 0 else None

    def go(self, store: Store, index: int) -> None:
        """Show a finished round, the nearest there is."""
        if not store.marks:
            return
        self._pinned, self.frame = False, None
        self.at = max(0, min(index, len(store.marks) - 1))
        self._shown_for = 0.0

    def move(self, store: Store, by: int) -> None:
        """Show the round so many further on."""
        self.go(store, (len(store.marks) - 1 if self.at is None else self.at) + by)

    def turn(self, store: Store, by: int) -> None:
        """Show the first round of a neighbouring turn; going back, first that of this turn."""
        if not store.marks:
            return
        here = len(store.marks) - 1 if self.at is None else self.at
        with_rounds = [t for t in store.turns if t.rounds]
        place = with_rounds.index(store.turn_of(here))
        if by < 0 and here > with_rounds[place].first_round:
            by += 1
        place = max(0, min(place + by, len(with_rounds) - 1))
        self.go(store, with_rounds[place].first_round)

    def next_stage(self, store: Store) -> None:
        """One stage further within the round on show; after its end, into the next round."""
        if not store.marks:
            return
        try:
            self._next_stage(store)
        except TraceError:
            self._stay()

    def _next_stage(self, store: Store) -> None:
        if self.at is None:
            self.go(store, len(store.marks) - 1)
        at = self.at or 0
        count = frame_count(store.round(at))
        if self.frame is None:
            # A finished round is on show: begin the next one, or this one again at the end.
            self.go(store, at + 1)
            self.frame = 0
        elif self.frame + 1 < count:
            self.frame += 1
        if self.frame is not None and self.frame >= frame_count(store.round(self.at or 0)) - 1:
            self.frame = None

    def play(self, store: Store) -> None:
        """Show rounds one after another; from the start when the last one is on show."""
        if not store.marks:
            return
        self.playing = True
        self.frozen = False
        if self.at is None or self.at >= len(store.marks) - 1:
            self.go(store, store.turn_of(len(store.marks) - 1).first_round)

    def tick(self, store: Store, seconds: float) -> bool:
        """Time passed while playing; True when another round is due."""
        if not self.playing or self.at is None:
            return False
        self._shown_for += seconds
        if self._shown_for < max(MIN_PLAY_SECONDS, store.marks[self.at].seconds):
            return False
        if self.at >= len(store.marks) - 1:
            self.playing = False
            return False
        self.go(store, self.at + 1)
        return True

"""Where the text so far has been before: its suffix, looked up in itself.

Answers repeat what the prompt or they themselves said: code that is edited, text that is quoted,
lists that go on. What followed the last time is a good guess for what follows now (prompt lookup).
Plain Python: a token costs a few dictionary entries, a question a few look-ups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

GRAMS = (4, 3, 2)
"""Lengths of the n-grams that are indexed, longest first."""
LONGEST = 24
"""Matches are not measured beyond this length."""


@dataclass(frozen=True, slots=True)
class Match:
    """An earlier place with the same last tokens.

    Attributes:
        length: Tokens that agree, up to `LONGEST`.
        rank: 0 for the latest place; more for places that went on differently.
        tokens: What followed there.
    """

    length: int
    rank: int
    tokens: tuple[int, ...]


class SuffixIndex:
    """Finds earlier occurrences of the suffix of a growing sequence.

    Per n-gram it remembers the latest place, and the latest one that went on differently.
    """

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._after: dict[tuple[int, ...], tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self.ids)

    def sync(self, ids: Sequence[int]) -> None:
        """Hold exactly `ids`: what is held already stays if `ids` go on from it."""
        held = len(self.ids)
        if self.ids != list(ids[:held]):
            self.ids, self._after, held = [], {}, 0
        self.extend(ids[held:])

    def extend(self, tokens: Sequence[int]) -> None:
        """Tokens that follow; the n-grams before each of them now have a continuation."""
        ids = self.ids
        for token in tokens:
            at = len(ids)
            ids.append(token)
            for n in GRAMS:
                if at < n:
                    continue
                gram = tuple(ids[at - n : at])
                known = self._after.get(gram)
                if known is None or ids[known[0]] == token:
                    self._after[gram] = (at, *known[1:]) if known else (at,)
                else:
                    self._after[gram] = (at, known[0])

    def matches(self, reach: int) -> list[Match]:
        """What followed the longest known suffix: at most two continuations of `reach` tokens.

        Their first tokens differ. A place so near the end that its continuation runs into it is
        read as a period: it goes on repeating.
        """
        for n in GRAMS:
            places = self._after.get(tuple(self.ids[-n:]))
            if places is not None and len(self.ids) > n:
                return [
                    Match(self._agreement(at, n), rank, self._following(at, reach))
                    for rank, at in enumerate(places)
                ]
        return []

    def _agreement(self, at: int, length: int) -> int:
        """How many tokens before `at` equal the sequence's last ones, given that `length` do."""
        ids, end = self.ids, len(self.ids)
        while length < min(at, LONGEST) and ids[at - 1 - length] == ids[end - 1 - length]:
            length += 1
        return length

    def _following(self, at: int, reach: int) -> tuple[int, ...]:
        found = self.ids[at : at + reach]
        period = len(self.ids) - at
        while len(found) < reach:
            found.append(found[len(found) - period])
        return tuple(found)

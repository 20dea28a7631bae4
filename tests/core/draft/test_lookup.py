"""The suffix index against a search that looks everywhere."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from dartree_core.draft.lookup import GRAMS, LONGEST, SuffixIndex

TEXT = st.lists(st.integers(0, 3), max_size=60)


def longest_gram(ids: Sequence[int]) -> int | None:
    """The longest indexed n-gram at the end of `ids` that stands somewhere before as well."""
    for n in GRAMS:
        if len(ids) > n and any(ids[i - n : i] == ids[-n:] for i in range(n, len(ids))):
            return n
    return None


def following(ids: Sequence[int], at: int, reach: int) -> tuple[int, ...]:
    text = list(ids)
    while len(text) < at + reach:
        text.append(text[at + len(text) - len(ids)])
    return tuple(text[at : at + reach])


@given(TEXT, st.integers(1, 9))
def test_matches_are_the_latest_places_of_the_longest_suffix(ids: list[int], reach: int) -> None:
    index = SuffixIndex()
    index.extend(ids)
    found = index.matches(reach)
    n = longest_gram(ids)
    if n is None:
        assert found == []
        return
    places = [i for i in range(n, len(ids)) if ids[i - n : i] == ids[-n:]]
    assert found[0].tokens == following(ids, places[-1], reach)
    others = [i for i in places if ids[i] != ids[places[-1]]]
    assert len(found) == (2 if others else 1)
    for rank, match in enumerate(found):
        at = places[-1] if rank == 0 else others[-1]
        assert match.rank == rank
        assert match.tokens == following(ids, at, reach)
        agree = 0
        while agree < min(at, LONGEST) and ids[at - 1 - agree] == ids[len(ids) - 1 - agree]:
            agree += 1
        assert match.length == agree >= n


@given(st.lists(TEXT, min_size=1, max_size=6))
def test_token_by_token_or_at_once_is_the_same(parts: list[list[int]]) -> None:
    grown, whole = SuffixIndex(), SuffixIndex()
    for part in parts:
        grown.extend(part)
    whole.extend([token for part in parts for token in part])
    assert grown.ids == whole.ids
    assert grown.matches(5) == whole.matches(5)


@given(TEXT, TEXT)
def test_sync_holds_the_new_text_and_nothing_of_the_old(old: list[int], new: list[int]) -> None:
    index, fresh = SuffixIndex(), SuffixIndex()
    index.sync(old)
    index.sync(new)
    fresh.extend(new)
    assert index.ids == new
    assert index.matches(4) == fresh.matches(4)


def test_a_text_that_goes_on_keeps_what_is_known() -> None:
    index = SuffixIndex()
    index.sync([1, 2, 3, 1, 2])
    held = index.ids
    index.sync([1, 2, 3, 1, 2, 3, 1, 2])
    assert index.ids is held
    assert index.matches(4)[0].tokens == (3, 1, 2, 3)


def test_a_loop_goes_on_looping() -> None:
    index = SuffixIndex()
    index.extend([5, 6, 7, 6, 7, 6, 7])
    assert index.matches(5)[0].tokens == (6, 7, 6, 7, 6)

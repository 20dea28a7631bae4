"""Choosing the best, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dartree_core.compiled import available

if not available():
    pytest.skip("nothing is compiled here", allow_module_level=True)

from dartree_core.compiled.ranking import first_largest, leading

NUMBERS = st.tuples(st.integers(1, 300), st.integers(0, 999), st.sampled_from((3, 1000)))


def numbers(case: tuple[int, int, int]) -> np.ndarray:
    """Some of them equal, and some of them nothing."""
    count, seed, kinds = case
    rng = np.random.default_rng(seed)
    values = rng.integers(0, kinds, count).astype(np.float32) - kinds // 2
    values[rng.random(count) < 0.1] = -np.inf
    return values


@settings(max_examples=150)
@given(case=NUMBERS)
def test_the_first_of_the_largest(case: tuple[int, int, int]) -> None:
    values = numbers(case)
    assert first_largest(values) == np.argmax(values)


def test_what_is_no_number_is_never_the_largest() -> None:
    values = np.full(100, np.nan, np.float32)
    assert first_largest(values) == 0
    values[70] = -5
    assert first_largest(values) == 70


@settings(max_examples=150)
@given(case=NUMBERS, share=st.floats(0, 1))
def test_the_best_come_in_descending_order(case: tuple[int, int, int], share: float) -> None:
    values = numbers(case)
    count = max(1, round(share * len(values)))
    best, places = np.empty(count, np.float32), np.empty(count, np.int64)
    leading(values, best, places)
    assert best.tolist() == np.sort(values)[::-1][:count].tolist()
    assert values[places].tolist() == best.tolist()
    assert len(set(places.tolist())) == count

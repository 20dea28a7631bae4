from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dartree_tui.widgets.figures import amount, bar, gain, prob, signed, spark


@pytest.mark.parametrize(
    ("p", "text"),
    [(0.811, ".811"), (0.0, ".000"), (0.0002, "<.001"), (0.9996, "1.00"), (math.nan, "–")],
)
def test_probabilities(p, text):
    assert prob(p) == text


def test_probabilities_with_fewer_digits():
    assert [prob(p, 2) for p in (0.917, 0.004, 0.999)] == [".92", "<.01", "1.0"]


def test_signs_are_real_minus_signs():
    assert signed(-0.214) == "−0.21"
    assert signed(-math.inf) == "−∞"
    assert (gain(1.7), gain(-0.2), gain(0.0)) == ("+1.70", "−0.20", "+0.00")


@pytest.mark.parametrize(
    ("x", "text"),
    [(0.42, "0.42"), (8.42, "8.4"), (91.4, "91"), (1204, "1204"), (12_345, "12.3k"),
     (123_456, "123k"), (2_500_000, "2.5M"), (math.nan, "–")],
)  # fmt: skip
def test_amounts(x, text):
    assert amount(x) == text


@given(st.floats(0, 1), st.integers(0, 40))
def test_bars_stay_in_their_room_and_show_what_is_not_zero(share, cells):
    drawn = bar(share, cells)
    assert len(drawn) <= cells
    assert bool(drawn) == (share > 0 and cells > 0)


def test_bars_grow_with_their_value():
    assert bar(0.5, 4) == "██"
    assert bar(0.53, 4) == "██▏"
    assert bar(1.0, 4) == "████"


def test_sparklines():
    assert spark([0, 4, 8, math.nan]) == "▁▅█ "
    assert spark([0.0, 0.0]) == "▁▁"
    assert spark([5.0], top=10.0) == "▅"

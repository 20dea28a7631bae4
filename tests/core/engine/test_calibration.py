"""Calibration: from path scores to chances."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dartree_core.engine.calibration import Calibration


@given(st.floats(-30, 0))
def test_what_was_never_seen_keeps_its_scores_word(score: float) -> None:
    assert Calibration().chance(score) == pytest.approx(math.exp(score))


def test_an_overconfident_head_is_unlearnt() -> None:
    calibration = Calibration()
    assert calibration.chance(-0.05) > 0.9
    for i in range(800):
        calibration.learn([-0.05, -2.2], [i % 4 == 0, False])
    assert calibration.chance(-0.05) == pytest.approx(0.25, abs=0.12)
    assert calibration.chance(-2.2) < 0.02
    assert calibration.chance(-0.9) == pytest.approx(math.exp(-0.9), rel=0.01)


@given(st.lists(st.tuples(st.floats(-12, 0), st.booleans()), max_size=60))
def test_chances_stay_chances_and_survive_json(seen: list[tuple[float, bool]]) -> None:
    calibration = Calibration()
    for score, hit in seen:
        calibration.learn([score], [hit])
    again = Calibration.from_dict(calibration.to_dict())
    for score in (-0.01, -0.7, -3.0, -20.0):
        assert 0 <= calibration.chance(score) <= 1
        assert again.chance(score) == pytest.approx(calibration.chance(score), abs=1e-3)


@pytest.mark.parametrize(
    "damage", [{"hits": [9.0] * 14}, {"seen": [math.nan] * 14}, {"hits": [0.0]}, {"seen": "no"}]
)
def test_numbers_that_cannot_be_are_refused(damage: dict[str, object]) -> None:
    data = {**Calibration().to_dict(), **damage}
    with pytest.raises((TypeError, ValueError)):
        Calibration.from_dict(data)

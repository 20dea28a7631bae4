"""Noise is a function of (seed, position, token), and looks like independent Gumbel draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dartree_core.engine.noise import gumbel

SEEDS = st.integers(0, 2**63 - 1)
POSITIONS = st.integers(0, 2**20)
TOKENS = st.lists(st.integers(0, 300_000), min_size=1, max_size=20)
EULER = 0.5772156649015329
COUNT = 200_000


def drawn(seed: int = 1, position: int = 7, count: int = COUNT) -> np.ndarray:
    return gumbel(seed, position, torch.arange(count)).double().numpy()


@given(SEEDS, POSITIONS, TOKENS, st.randoms())
def test_order_shape_and_company_do_not_matter(
    seed: int, position: int, tokens: list[int], random: object
) -> None:
    together = gumbel(seed, position, torch.tensor(tokens))
    assert together.dtype == torch.float32
    backwards = gumbel(seed, position, torch.tensor(tokens[::-1]))
    assert backwards.tolist() == together.tolist()[::-1]
    square = gumbel(seed, position, torch.tensor([tokens, tokens]))
    assert square.shape == (2, len(tokens))
    assert square[1].tolist() == together.tolist()
    alone = [float(gumbel(seed, position, torch.tensor(t))) for t in tokens]
    assert alone == together.tolist()


@given(SEEDS, POSITIONS, TOKENS)
def test_always_finite(seed: int, position: int, tokens: list[int]) -> None:
    assert torch.isfinite(gumbel(seed, position, torch.tensor(tokens))).all()


def test_values_do_not_change_between_versions() -> None:
    """A seed printed in a report must mean the same next year."""
    values = gumbel(42, 1000, torch.tensor([0, 1, 49151, 151935])).tolist()
    assert values == pytest.approx(PINNED, abs=1e-6)


PINNED = [0.9177409, 1.4598513, -0.0102515, 0.6163140]


@pytest.mark.parametrize(("seed", "position"), [(0, 0), (1, 7), (2**63 - 1, 40_000)])
def test_moments_and_shape_are_gumbels(seed: int, position: int) -> None:
    g = drawn(seed, position)
    assert g.mean() == pytest.approx(EULER, abs=5 * math.sqrt(math.pi**2 / 6 / COUNT))
    assert g.var() == pytest.approx(math.pi**2 / 6, rel=0.03)
    assert stats.kstest(g, stats.gumbel_r.cdf).pvalue > 1e-4


def test_uniform_in_every_bit() -> None:
    """Each of the upper 16 bits of the underlying uniform is set half of the time."""
    uniform = np.exp(-np.exp(-drawn()))
    for bit in range(16):
        share = (np.floor(uniform * 2 ** (bit + 1)) % 2).mean()
        assert share == pytest.approx(0.5, abs=5 / (2 * math.sqrt(COUNT)))


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.corrcoef(a, b)[0, 1])


LIMIT = 5 / math.sqrt(COUNT)


@pytest.mark.parametrize("lag", [1, 2, 3, 8, 64, 256, 1024, 65536])
def test_neighbouring_tokens_are_independent(lag: int) -> None:
    g = drawn()
    assert abs(correlation(g[:-lag], g[lag:])) < LIMIT * math.sqrt(COUNT / (COUNT - lag))


@pytest.mark.parametrize("step", [1, 2, 256, 4096, 2**20])
def test_neighbouring_positions_are_independent(step: int) -> None:
    assert abs(correlation(drawn(1, 7), drawn(1, 7 + step))) < LIMIT


@pytest.mark.parametrize("step", [1, 2, 2**31, 2**32, 2**62])
def test_neighbouring_seeds_are_independent(step: int) -> None:
    assert abs(correlation(drawn(1, 7), drawn(1 + step, 7))) < LIMIT


def test_seed_and_position_cannot_stand_in_for_each_other() -> None:
    for a, b in (((0, 1), (1, 0)), ((3, 5), (5, 3)), ((7, 7), (8, 8)), ((0, 9), (9, 9))):
        assert abs(correlation(drawn(*a), drawn(*b))) < LIMIT


def test_one_token_over_positions_and_over_seeds_is_gumbel() -> None:
    """The sequence one token sees is as random as a row of tokens."""
    token = torch.tensor([5])
    along = np.array([float(gumbel(1, p, token)) for p in range(4000)])
    across = np.array([float(gumbel(s, 1, token)) for s in range(4000)])
    for g in (along, across):
        assert stats.kstest(g, stats.gumbel_r.cdf).pvalue > 1e-4
        assert abs(correlation(g[:-1], g[1:])) < 5 / math.sqrt(len(g))


def test_argmax_with_noise_draws_from_the_softmax() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5])
    tokens = torch.arange(5)
    draws = 6000
    picked = [int((logits + gumbel(s, s % 17, tokens)).argmax()) for s in range(draws)]
    observed = np.bincount(picked, minlength=5)
    assert stats.chisquare(observed, logits.double().softmax(0).numpy() * draws).pvalue > 1e-4

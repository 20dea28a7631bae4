"""Sampling has the target's law: empirical frequencies against the recorded exact marginals."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dartree_core.config import DecodeConfig, SamplingConfig, TreeConfig
from tests.conformance import recorded

DRAWS = 400
CASES = [
    pytest.param(path, i, id=f"{path.stem}-{i}")
    for path in recorded.files("sampling/*.json")
    for i in range(len(recorded.read(path)["records"]))
]


@pytest.mark.parametrize(("path", "index"), CASES)
def test_marginals(path: Any, index: int) -> None:
    """First token: drawn at prefill. Second: verified in a tree of the first round."""
    record = recorded.read(path)["records"][index]
    decoder = recorded.decoder(record["pair"])
    tree = TreeConfig(budget=8, width=8)
    counts = Counter[int](), Counter[int]()
    session = decoder.session()
    for seed in range(DRAWS):
        config = DecodeConfig(
            tree=tree,
            sampling=SamplingConfig(temperature=record["temperature"], seed=seed),
            max_new_tokens=3,
        )
        ids = decoder.generate(record["prompt"], config, session=session).token_ids
        counts[0][ids[0]] += 1
        counts[1][ids[1]] += 1
    for count, which in zip(counts, ("p1", "p2"), strict=True):
        assert p_value(count, record[f"{which}_ids"], record[which]) > 1e-4


def p_value(count: Counter[int], ids: list[int], probs: list[float]) -> float:
    """Chi-square of observed tokens against probabilities; cells below 5 expected are pooled."""
    expected = np.array(probs) * DRAWS
    observed = np.array([count[i] for i in ids], dtype=float)
    big = expected >= 5
    rest_expected = DRAWS - expected[big].sum()
    rest_observed = DRAWS - observed[big].sum()
    expected, observed = expected[big], observed[big]
    if rest_expected >= 1:
        expected = np.append(expected, rest_expected)
        observed = np.append(observed, rest_observed)
    elif rest_observed > 0:
        # A pool this unlikely must be all but empty: its own Poisson tail is the test.
        return float(stats.poisson.sf(rest_observed - 1, max(rest_expected, 1e-9)))
    if len(expected) < 2:
        return 1.0
    return float(stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue)

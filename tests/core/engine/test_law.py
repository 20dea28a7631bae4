"""What is sampled has exactly the target's law, whatever the tree (chi-square, fixed seeds)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from dartree_core.config import DecodeConfig, SamplingConfig, TreeConfig
from tests.core import tiny

DRAWS = 160
DECODER = tiny.enumerable()
FEW = tiny.FEW
PROMPT = [3, 7, 1]


def law(sampling: SamplingConfig) -> list[np.ndarray]:
    """Exact marginals of the first three tokens."""
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    warpers: list[Any] = [TemperatureLogitsWarper(sampling.temperature)]
    if sampling.top_k:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    model: Any = DECODER.target.model
    prefixes, weight = torch.tensor([PROMPT]), torch.ones(1, dtype=torch.float64)
    out = []
    for _ in range(3):
        with torch.inference_mode():
            logits = model(prefixes).logits[:, -1].float()
        for warper in warpers:
            logits = warper(prefixes, logits)
        joint = weight[:, None] * logits.double().softmax(-1)
        out.append(joint.sum(0).numpy())
        prefixes = torch.cat(
            (prefixes.repeat_interleave(FEW, 0), torch.arange(FEW).repeat(len(prefixes))[:, None]),
            1,
        )
        weight = joint.flatten()
    return out


def p_value(count: Counter[int], law: np.ndarray) -> float:
    assert all(law[t] > 0 for t in count), "a token that cannot be drawn was drawn"
    observed = np.array([count[t] for t in range(FEW)], dtype=float)
    expected = law * DRAWS
    rare = expected < 5
    if rare.any():
        observed = np.append(observed[~rare], observed[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    keep = expected > 0
    return float(stats.chisquare(observed[keep], expected[keep]).pvalue)


PURE = SamplingConfig(temperature=1.0)
FILTERED = SamplingConfig(temperature=1.3, top_k=5, top_p=0.8)


@pytest.mark.parametrize(
    ("method", "sampling"),
    [*((m, PURE) for m in tiny.TREES), ("dartree", FILTERED)],
    ids=[*tiny.TREES, "dartree-filtered"],
)
def test_marginals_of_three_tokens(method: Any, sampling: SamplingConfig) -> None:
    """The first token comes from the prefill, the others from a tree of the first round."""
    counts = [Counter[int]() for _ in range(3)]
    session = DECODER.session()
    accepted = 0
    for seed in range(DRAWS):
        config = DecodeConfig(
            method=method,
            tree=TreeConfig(budget=8, width=6),
            sampling=SamplingConfig(
                temperature=sampling.temperature,
                top_k=sampling.top_k,
                top_p=sampling.top_p,
                seed=seed,
            ),
            max_new_tokens=4,
        )
        result = DECODER.generate(PROMPT, config, session=session)
        accepted += result.metrics["num_accepted_draft_tokens"]
        for count, token in zip(counts, result.token_ids, strict=False):
            count[token] += 1
    assert accepted > DRAWS / 10
    for count, exact in zip(counts, law(sampling), strict=True):
        assert p_value(count, exact) > 1e-3


def test_the_test_can_fail() -> None:
    """Draws at another temperature are told apart with this many seeds."""
    exact = law(PURE)[0]
    count = Counter[int]()
    session = DECODER.session()
    for seed in range(DRAWS):
        sampling = SamplingConfig(temperature=0.6, seed=seed)
        config = DecodeConfig(method="ar", sampling=sampling, max_new_tokens=1)
        count[DECODER.generate(PROMPT, config, session=session).token_ids[0]] += 1
    assert p_value(count, exact) < 1e-3

"""The target's choice at a node depends on that node's own path."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dartree_core.config import SamplingConfig
from dartree_core.engine.sampling import Chooser

CPU = torch.device("cpu")
VOCAB = 24


def logits(rows: int, seed: int = 0) -> torch.Tensor:
    return 2 * torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed))


def test_penalty_is_on_the_tokens_of_a_rows_own_path() -> None:
    """Neither a sibling's tokens nor those of an earlier row count."""
    chooser = Chooser(SamplingConfig(repetition_penalty=2.0), [1, 2], CPU)
    chooser.extend([3])
    flat = torch.full((3, VOCAB), 4.0)
    scores = chooser.scores(flat, [[], [5, 6], [7]])
    for row, seen in enumerate([{1, 2, 3}, {1, 2, 3, 5, 6}, {1, 2, 3, 7}]):
        assert {t for t in range(VOCAB) if scores[row, t] == 2.0} == seen
    assert (flat == 4.0).all(), "the target's logits were changed in place"


def test_penalty_counts_a_token_once_however_often_it_occurred() -> None:
    chooser = Chooser(SamplingConfig(repetition_penalty=2.0), [5, 5], CPU)
    chooser.extend([5])
    scores = chooser.scores(torch.full((1, VOCAB), 4.0), [[5, 5]])
    assert scores[0, 5] == 2.0


def test_context_is_told_once_however_long() -> None:
    chooser = Chooser(SamplingConfig(repetition_penalty=2.0), [1, 2] * 4000, CPU)
    chooser.extend([3] * 500)
    history = chooser._histories([[], [5, 6]])
    assert history is not None
    assert history.shape == (2, 3 + 2)
    assert set(history[0].tolist()) == {1, 2, 3}
    assert set(history[1].tolist()) == {1, 2, 3, 5, 6}


@given(
    st.lists(st.lists(st.integers(0, VOCAB - 1), max_size=6), min_size=1, max_size=6),
    st.sampled_from(
        [
            SamplingConfig(repetition_penalty=1.5),
            SamplingConfig(temperature=0.7, seed=4),
            SamplingConfig(temperature=0.9, top_k=3, top_p=0.8, min_p=0.05, seed=2),
            SamplingConfig(temperature=1.2, repetition_penalty=1.5, top_k=9, seed=1),
        ]
    ),
)
def test_a_row_is_chosen_alike_alone_and_in_company(
    paths: list[list[int]], sampling: SamplingConfig
) -> None:
    chooser = Chooser(sampling, [1, 2, 3], CPU)
    table = logits(len(paths))
    positions = [10 + len(p) for p in paths]
    together = chooser.choose(table, positions, paths).tolist()
    alone = [
        int(chooser.choose(table[i : i + 1], [positions[i]], [paths[i]])) for i in range(len(paths))
    ]
    assert together == alone


@given(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=8), st.integers(0, 8))
def test_path_and_context_are_one_history(tokens: list[int], cut: int) -> None:
    """What was a path in one round is context in the next: the choice stays."""
    sampling = SamplingConfig(temperature=0.8, repetition_penalty=1.7, seed=8)
    whole = Chooser(sampling, [1, *tokens], CPU)
    split = Chooser(sampling, [1], CPU)
    split.extend(tokens[:cut])
    row = logits(1)
    assert whole.choose(row, [30], [[]]) == split.choose(row, [30], [tokens[cut:]])


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.7},
        {"temperature": 1.0, "top_k": 4},
        {"temperature": 1.0, "top_p": 0.6},
        {"temperature": 1.0, "min_p": 0.2},
        {"temperature": 0.6, "top_k": 12, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.3},
    ],
    ids=str,
)
def test_many_draws_have_transformers_distribution(options: dict[str, Any]) -> None:
    """Chi-square against the processors transformers' own `generate` would build."""
    prompt = [1, 2, 3]
    row = logits(1, seed=3)
    processors = _theirs(options)
    exact = processors(torch.tensor([prompt]), row.clone())[0].double().softmax(0).numpy()
    draws = 4000
    count = np.zeros(VOCAB)
    for seed in range(draws):
        chooser = Chooser(SamplingConfig(seed=seed, **options), prompt, CPU)
        count[int(chooser.choose(row, [3], [[]]))] += 1
    assert count[exact == 0].sum() == 0
    rare = (exact * draws < 5) & (exact > 0)
    observed, expected = count[~rare & (exact > 0)], exact[~rare & (exact > 0)] * draws
    if rare.any():
        observed = np.append(observed, count[rare].sum())
        expected = np.append(expected, exact[rare].sum() * draws)
    assert stats.chisquare(observed, expected).pvalue > 1e-4


def _theirs(options: dict[str, Any]) -> Any:
    """The processors of a real `generate` call, in its order."""
    from transformers import GenerationConfig

    from tests.core import tiny

    model: Any = tiny.target("llama").model
    config = GenerationConfig(do_sample=True, **{"top_k": 0, **options})
    return model._get_logits_processor(config, input_ids_seq_length=3)


def test_temperatures_near_zero_are_greedy() -> None:
    table = logits(4)
    cold = Chooser(SamplingConfig(temperature=1e-6), [1], CPU)
    assert cold.plain_argmax
    assert cold.choose(table, [1] * 4, [[]] * 4).tolist() == table.argmax(-1).tolist()


def test_noise_belongs_to_the_position_not_the_row() -> None:
    chooser = Chooser(SamplingConfig(temperature=1.0, seed=1), [1], CPU)
    flat = torch.zeros(40, VOCAB)
    same = chooser.choose(flat, [9] * 40, [[]] * 40)
    assert len(set(same.tolist())) == 1
    different = chooser.choose(flat, list(range(40)), [[]] * 40)
    assert len(set(different.tolist())) > 10

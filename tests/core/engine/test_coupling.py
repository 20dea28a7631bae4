"""Drafting with the target's own noise: where it helps, and when it is left alone."""

from __future__ import annotations

import pytest
import torch

from dartree_core.config import DecodeConfig, SamplingConfig
from dartree_core.draft import BlockDraft
from dartree_core.draft.vocabulary import DraftVocabulary
from dartree_core.engine.coupling import Coupling
from dartree_core.engine.noise import gumbel
from tests.core import tiny

VOCAB = 40
SLOTS = 3
SAMPLING = SamplingConfig(temperature=1.0, seed=9)


def play(coupling: Coupling, sharp: float, rounds: int = 150, temperature: float = 1.0) -> float:
    """Share of the target's first choices that the drafter's ranking puts first.

    The drafter's logits are the target's divided by `sharp`: 1 is a perfect drafter, more is one
    that knows the order but not how sure to be.
    """
    dice = torch.Generator().manual_seed(0)
    tokens = torch.arange(VOCAB)
    sampling = SamplingConfig(temperature=temperature, seed=SAMPLING.seed)
    hits = 0
    for i in range(rounds):
        start = 10 * i
        target = torch.randn(SLOTS, VOCAB, generator=dice) * 2
        noise = [gumbel(sampling.seed, start + 1 + s, tokens) for s in range(SLOTS)]
        choices = [int((target[s] / temperature + noise[s]).argmax()) for s in range(SLOTS)]
        block = BlockDraft(torch.zeros(SLOTS, 1), target / sharp, DraftVocabulary(VOCAB))
        ranked = coupling.apply(block, sampling, start)
        hits += int(ranked.base_logits[0].argmax()) == choices[0]
        coupling.learn(choices)
    return hits / rounds


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_a_perfect_drafter_foresees_every_sample(temperature: float) -> None:
    coupling = Coupling()
    play(coupling, 1.0, temperature=temperature)
    assert coupling.sharpness == 1.0
    assert play(coupling, 1.0, temperature=temperature) == 1.0


def test_an_unsure_drafter_is_sharpened() -> None:
    coupling = Coupling()
    play(coupling, 2.0)
    assert coupling.sharpness == 2.0
    assert play(coupling, 2.0) > 0.95


def test_a_drafter_that_noise_would_drown_is_not_coupled() -> None:
    """A target that is certain leaves noise without a say."""
    coupling = Coupling()
    sampling = SamplingConfig(temperature=1.0, seed=1)
    flat = torch.zeros(SLOTS, VOCAB)
    flat[:, 7] = 1.0
    block = BlockDraft(torch.zeros(SLOTS, 1), flat, DraftVocabulary(VOCAB))
    for i in range(60):
        coupling.apply(block, sampling, 10 * i)
        coupling.learn([7] * SLOTS)
    assert coupling.sharpness is None
    assert coupling.apply(block, sampling, 0) is block


def test_tokens_outside_the_draft_vocabulary_teach_nothing() -> None:
    coupling = Coupling()
    vocabulary = DraftVocabulary(4, torch.tensor([30, 5, 12, 8]))
    assert vocabulary.to_rows(torch.tensor([5, 30, 8, 9, 39])).tolist() == [1, 0, 3, -1, -1]
    block = BlockDraft(torch.zeros(2, 1), torch.randn(2, 4), vocabulary)
    for _ in range(20):
        coupling.apply(block, SAMPLING, 0)
        coupling.learn([9, 39])
    assert coupling.sharpness is None
    coupling.apply(block, SAMPLING, 0)
    coupling.learn([9, 5])
    assert any(score > 0 for score in coupling._scores)


@pytest.mark.parametrize("method", ["dflash", "domino", "ddtree", "dartree", "dartree-fixed"])
@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1.0},
        {"temperature": 0.6, "top_k": 20},
        {"temperature": 1.3, "top_p": 0.8},
        {"temperature": 0.9, "min_p": 0.1},
        {"temperature": 0.8, "repetition_penalty": 1.3},
    ],
    ids=str,
)
def test_coupled_or_not_the_text_is_plain_decodings(
    method: str, settings: dict[str, float]
) -> None:
    decoder = tiny.trained("tied")
    prompt = [7, 100, 31, 8, 250]
    for seed in range(2):
        config = DecodeConfig(method="ar", max_new_tokens=24)
        config = config.with_changes(seed=seed, **settings)
        plain = decoder.generate(prompt, config).token_ids
        for coupled in (True, False):
            drafted = config.with_changes(method=method, budget=12, coupled=coupled)
            assert decoder.generate(prompt, drafted).token_ids == plain

"""Drafting with the target's own noise: what is learnt, and that it helps or stays out."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from dartree_core.config import DecodeConfig, Method, SamplingConfig
from dartree_core.draft import BlockDraft
from dartree_core.draft.heads import CorrectionHead, NoHead
from dartree_core.draft.vocabulary import DraftVocabulary
from dartree_core.engine.coupling import Coupling, Weights
from dartree_core.engine.noise import PositionNoise, gumbel
from dartree_core.events import RoundDone
from tests.core import tiny

VOCAB = 40
SLOTS = 3
CPU = torch.device("cpu")
CONFIG = DecodeConfig(sampling=SamplingConfig(temperature=1.0, seed=9))


def embed(ids: Tensor) -> Tensor:
    return ids[:, None].float()


class PathHead(CorrectionHead):
    """Knows exactly what the marginals lack: `table[previous token]`, slot by slot."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.table = table

    def prepare(self, hidden: Tensor) -> Tensor:
        return hidden

    def root_state(self, token: Tensor, embedding: Tensor) -> Tensor:
        return embedding

    def advance(
        self, states: Tensor, tokens: Tensor, embeddings: Tensor, shared: Tensor | None = None
    ) -> Tensor:
        return embeddings

    def correct(self, shared: Tensor, states: Tensor, candidates: Tensor | None) -> Tensor:
        rows = self.table[states[:, 0].long()]
        return rows if candidates is None else rows[:, candidates]


def play(
    coupling: Coupling,
    sharp: float,
    rounds: int = 120,
    temperature: float = 1.0,
    head: CorrectionHead | None = None,
) -> float:
    """Share of the target's first choices that the drafter's ranking puts first.

    The drafter's logits, head included, are the target's divided by `sharp`: 1 is a perfect
    drafter, more is one that knows the order but not how sure to be.
    """
    dice = torch.Generator().manual_seed(0)
    config = CONFIG.with_changes(temperature=temperature)
    noise = PositionNoise(config.sampling.seed)
    hits = 0
    for i in range(rounds):
        start = 10 * i
        marginal = torch.randn(SLOTS, VOCAB, generator=dice) * 2
        tokens = [3]
        for slot in range(SLOTS):
            truth = marginal[slot].clone()
            if isinstance(head, PathHead):
                truth += head.table[tokens[-1]] * sharp
            g = gumbel(config.sampling.seed, start + 1 + slot, torch.arange(VOCAB))
            tokens.append(int((truth / temperature + g).argmax()))
        block = BlockDraft(torch.zeros(SLOTS, 1), marginal / sharp, DraftVocabulary(VOCAB))
        ranked = coupling.apply(block, head or NoHead(), config, noise, start)
        first = ranked.base_logits[0]
        if isinstance(head, PathHead):
            first = first + ranked.scale * head.table[3]
        hits += int(first.argmax()) == tokens[1]
        coupling.learn(tokens)
    return hits / rounds


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_a_perfect_drafter_foresees_nearly_every_sample(temperature: float) -> None:
    coupling = Coupling(embed)
    play(coupling, 1.0, temperature=temperature)
    weights = coupling.weights(CONFIG.with_changes(temperature=temperature))
    assert weights.a / weights.b == pytest.approx(1.0, abs=0.1)
    assert play(coupling, 1.0, temperature=temperature) > 0.9


def test_an_unsure_drafter_is_sharpened() -> None:
    coupling = Coupling(embed)
    play(coupling, 2.0)
    weights = coupling.weights(CONFIG)
    assert weights.a / weights.b == pytest.approx(2.0, abs=0.3)
    assert play(coupling, 2.0) > 0.9


def test_weights_are_learnt_from_what_the_head_corrects() -> None:
    """Marginals alone would look like a poor drafter's."""
    table = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(1)) * 3
    coupling = Coupling(embed)
    play(coupling, 1.0, head=PathHead(table))
    weights = coupling.weights(CONFIG)
    assert weights.a / weights.b == pytest.approx(1.0, abs=0.1)
    assert play(coupling, 1.0, head=PathHead(table)) > 0.95


def test_scores_become_the_chance_of_being_chosen() -> None:
    """Maximum likelihood on data from the model itself finds the model's weights."""
    dice = torch.Generator().manual_seed(2)
    weights = Weights()
    for _ in range(800):
        x, g = torch.randn(2, 2, 20, generator=dice) * 1.5
        chosen = torch.multinomial((1.6 * x + 0.5 * g).softmax(-1), 1, generator=dice)
        # The choice first, and then as an impossible rival of its own.
        rest_x, rest_g = x.scatter(1, chosen, -torch.inf), g
        weights.learn(
            torch.cat((x.gather(1, chosen), rest_x), 1), torch.cat((g.gather(1, chosen), rest_g), 1)
        )
    assert weights.a == pytest.approx(1.6, abs=0.25)
    assert weights.b == pytest.approx(0.5, abs=0.15)


def test_a_drafter_that_noise_would_drown_drafts_as_the_papers_do() -> None:
    """A target that is certain leaves noise without a say."""
    coupling = Coupling(embed)
    flat = torch.zeros(SLOTS, VOCAB)
    flat[:, 7] = 1.0
    block = BlockDraft(torch.zeros(SLOTS, 1), flat, DraftVocabulary(VOCAB))
    noise = PositionNoise(1)
    for i in range(60):
        coupling.apply(block, NoHead(), CONFIG, noise, 10 * i)
        coupling.learn([3, *[7] * SLOTS])
    weights = coupling.weights(CONFIG)
    assert weights.b < 0.2 * weights.a
    weights.b = 0.01
    assert coupling.apply(block, NoHead(), CONFIG, noise, 0) is block


def test_tokens_outside_the_draft_vocabulary_teach_nothing() -> None:
    coupling = Coupling(embed)
    vocabulary = DraftVocabulary(4, torch.tensor([30, 5, 12, 8]))
    assert vocabulary.to_rows(torch.tensor([5, 30, 8, 9, 39])).tolist() == [1, 0, 3, -1, -1]
    block = BlockDraft(torch.zeros(2, 1), torch.randn(2, 4), vocabulary)
    coupling.apply(block, NoHead(), CONFIG, PositionNoise(9), 0)
    coupling.learn([2, 9, 39])
    assert coupling.weights(CONFIG).choices == 0
    coupling.apply(block, NoHead(), CONFIG, PositionNoise(9), 0)
    coupling.learn([2, 9, 5])
    assert coupling.weights(CONFIG).choices == 1


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_overflowing_logits_teach_nothing(bad: float) -> None:
    coupling = Coupling(embed)
    logits = torch.randn(SLOTS, VOCAB)
    logits[0, 5] = bad
    block = BlockDraft(torch.zeros(SLOTS, 1), logits, DraftVocabulary(VOCAB))
    coupling.apply(block, NoHead(), CONFIG, PositionNoise(9), 0)
    coupling.learn([2, 5, 6])
    weights = coupling.weights(CONFIG)
    assert math.isfinite(weights.a)
    assert math.isfinite(weights.b)
    assert weights.choices == 0


def test_weights_are_apart_for_what_makes_a_difference() -> None:
    coupling = Coupling(embed)
    base = coupling.weights(CONFIG)
    assert coupling.weights(CONFIG.with_changes(seed=77, budget=3)) is base
    assert coupling.weights(CONFIG.with_changes(method="domino")) is base
    assert coupling.weights(CONFIG.with_changes(method="ddtree")) is not base
    assert coupling.weights(CONFIG.with_changes(temperature=0.7)) is not base
    assert coupling.weights(CONFIG.with_changes(top_p=0.9)) is not base


def test_settled_weights_are_revised_now_and_then() -> None:
    coupling = Coupling(embed)
    play(coupling, 1.0, rounds=30)
    before = coupling.weights(CONFIG).choices
    play(coupling, 1.0, rounds=8)
    assert 0 < coupling.weights(CONFIG).choices - before <= 2 * SLOTS


# Noise is computed once


def test_drafting_and_choosing_share_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A position's noise costs once, whoever asks first and however often."""
    from dartree_core.engine import noise

    asked: list[int] = []

    def counted(seed: int, position: int, tokens: Tensor) -> Tensor:
        asked.append(position)
        return gumbel(seed, position, tokens)

    monkeypatch.setattr(noise, "gumbel", counted)
    decoder = tiny.trained("untied-shifted")
    config = DecodeConfig(max_new_tokens=40).with_changes(budget=12, temperature=0.8)
    rounds = [e for e in decoder.stream([7, 100, 31, 8], config) if isinstance(e, RoundDone)]
    assert len(rounds) > 5
    assert len(asked) == len(set(asked))
    assert len(asked) <= 40 + 8


def test_rows_of_noise_are_the_tokens_own() -> None:
    noise = PositionNoise(5, window=3)
    rows = noise.rows([7, 8, 9, 7], 20, CPU)
    for position, row in zip([7, 8, 9, 7], rows, strict=True):
        assert row.tolist() == gumbel(5, position, torch.arange(20)).tolist()
    for position in (10, 11, 7, 8, 30, 2):
        assert noise.row(position, 6, CPU).tolist() == (
            gumbel(5, position, torch.arange(6)).tolist()
        )
    assert noise.row(2, 31, CPU).tolist() == gumbel(5, 2, torch.arange(31)).tolist()


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
    method: Method, settings: dict[str, float]
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

"""In fp32 every method says exactly what plain decoding says, whatever the settings."""

from __future__ import annotations

import copy
import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from dartree_core.config import METHODS, DecodeConfig, SamplingConfig, TreeConfig
from dartree_core.draft import load_drafter
from dartree_core.engine import Decoder
from dartree_core.models import load_target
from dartree_core.models.lean import LeanTarget
from tests.core import tiny

LENGTH = 24
TREE_SETTINGS: dict[str, dict[str, Any]] = {
    "one-node": {"budget": 1},
    "narrow": {"budget": 4, "width": 2},
    "odd": {"budget": 17, "width": 5},
    "paper": {"budget": 64, "width": 12},
    "larger-than-vocabulary": {
        "budget": 700,
        "width": 600,
        "candidates": 600,
        "expansion_k": 600,
    },
    "one-candidate": {"candidates": 1, "expansion_k": 1},
    "one-child-per-parent": {"expansion_k": 1, "budget": 9},
    "no-depth-bonus": {"depth_bonus": 0.0, "budget": 16},
    "shallow": {"depth_bonus": -5.0, "budget": 16},
    "shortest-block": {"block_size": 2},
    "short-block": {"block_size": 4},
}
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy-penalised": {"repetition_penalty": 1.3},
    "sampled": {"temperature": 0.8, "seed": 11},
    "sampled-hot": {"temperature": 1.5, "seed": 2**63 - 1},
    "top-k": {"temperature": 0.8, "top_k": 5, "seed": 3},
    "top-p": {"temperature": 0.8, "top_p": 0.7, "seed": 4},
    "min-p": {"temperature": 0.8, "min_p": 0.1, "seed": 5},
    "sampled-penalised": {"temperature": 0.8, "repetition_penalty": 1.4, "seed": 6},
    "everything": {
        "temperature": 1.1,
        "top_k": 30,
        "top_p": 0.9,
        "min_p": 0.02,
        "repetition_penalty": 0.8,
        "seed": 7,
    },
}
PAIRS = list(tiny.TRAINED)


def sampled(name: str, **more: Any) -> DecodeConfig:
    return DecodeConfig(sampling=SamplingConfig(**SAMPLING[name]), max_new_tokens=LENGTH, **more)


def assert_plain(decoder: Decoder, config: DecodeConfig, prompt: list[int] = tiny.PROMPT) -> Any:
    result = decoder.generate(prompt, config)
    assert result.token_ids == tiny.plain(decoder, prompt, config).token_ids
    assert result.reason == "length"
    return result.metrics


OF_CHAINS = {"paper", "shortest-block", "short-block"}
"""Settings that chains do not ignore."""


@pytest.mark.parametrize(
    ("method", "settings"),
    [(m, s) for m in tiny.DRAFTING for s in TREE_SETTINGS if m in tiny.TREES or s in OF_CHAINS],
)
@pytest.mark.parametrize("pair", PAIRS[:1] + PAIRS[3:])
def test_greedy_equals_plain_for_every_tree(pair: str, settings: str, method: Any) -> None:
    tree = TreeConfig(**TREE_SETTINGS[settings])
    config = DecodeConfig(method=method, tree=tree, max_new_tokens=LENGTH)
    metrics = assert_plain(tiny.trained(pair), config)
    assert metrics["num_accepted_draft_tokens"] > 0


@pytest.mark.parametrize("method", tiny.DRAFTING)
@pytest.mark.parametrize(
    ("pair", "sampling"),
    [*((PAIRS[1], s) for s in SAMPLING), (PAIRS[2], "sampled"), (PAIRS[2], "everything")],
)
def test_seeded_sampling_equals_plain_sampling(pair: str, sampling: str, method: Any) -> None:
    assert_plain(tiny.trained(pair), sampled(sampling, method=method))


@pytest.mark.parametrize("settings", ["narrow", "larger-than-vocabulary", "shortest-block"])
@pytest.mark.parametrize("pair", PAIRS)
def test_seeded_sampling_equals_plain_for_every_tree(pair: str, settings: str) -> None:
    tree = TreeConfig(**TREE_SETTINGS[settings])
    assert_plain(tiny.trained(pair), sampled("sampled", tree=tree))


@pytest.mark.parametrize("method", tiny.DRAFTING)
@pytest.mark.parametrize("sampling", [None, "everything"])
@pytest.mark.parametrize("name", tiny.FAMILIES)
def test_every_family_with_scattered_acceptance(name: str, sampling: Any, method: Any) -> None:
    """The drafter has the true token among its best three, seldom first."""
    config = DecodeConfig(method=method, max_new_tokens=LENGTH)
    if sampling:
        config = sampled(sampling, method=method)
    decoder = tiny.knowing(name, config, tiny.vaguely_right)
    found = tiny.events(decoder, tiny.PROMPT, config)
    assert tiny.finish(found).token_ids == tiny.plain(decoder, tiny.PROMPT, config).token_ids
    if method in tiny.TREES and name != "qwen3-padded":
        paths = [e.accepted for e in tiny.rounds(found)]
        assert any(list(path) != list(range(len(path))) for path in paths), "no scattered rows"


@pytest.mark.parametrize("method", tiny.DRAFTING)
@pytest.mark.parametrize("name", tiny.FAMILIES)
def test_every_family_with_a_random_drafter_and_head(name: str, method: Any) -> None:
    config = DecodeConfig(method=method, tree=TreeConfig(budget=24), max_new_tokens=LENGTH)
    assert_plain(tiny.family(name), config)


@pytest.mark.parametrize("name", tiny.FAMILIES)
def test_plain_decoding_equals_transformers(name: str) -> None:
    config = DecodeConfig(max_new_tokens=40)
    ours = tiny.plain(tiny.family(name), tiny.PROMPT, config).token_ids
    assert ours == tiny.greedy_transformers(tiny.target(name), tiny.PROMPT, 40)


@pytest.mark.parametrize("name", ["llama", "gemma3-sliding", "qwen3-padded"])
def test_plain_decoding_with_repetition_penalty_equals_transformers(name: str) -> None:
    config = DecodeConfig(max_new_tokens=40).with_changes(repetition_penalty=1.3)
    theirs = tiny.greedy_transformers(tiny.target(name), tiny.PROMPT, 40, repetition_penalty=1.3)
    assert theirs != tiny.greedy_transformers(tiny.target(name), tiny.PROMPT, 40)
    assert tiny.plain(tiny.family(name), tiny.PROMPT, config).token_ids == theirs


@pytest.mark.parametrize(
    "changes",
    [{"vocab_size": tiny.VOCAB}, {"vocab_size": tiny.VOCAB + 16}, {"vocab_size": tiny.VOCAB + 40}],
    ids=["drafter-smaller", "same-size", "drafter-larger"],
)
@pytest.mark.parametrize("method", tiny.DRAFTING)
def test_padded_vocabularies_on_either_side(method: Any, changes: dict[str, int]) -> None:
    """Padding differs between checkpoints of one model; rows only one side has are not drafted."""
    target = tiny.target("qwen3-padded")
    decoder = Decoder(target, tiny.drafter(target, **changes))
    config = DecodeConfig(method=method, tree=TreeConfig(budget=200), max_new_tokens=LENGTH)
    found = tiny.events(decoder, tiny.PROMPT, config)
    answer = tiny.plain(tiny.family("qwen3-padded"), tiny.PROMPT, config).token_ids
    assert tiny.finish(found).token_ids == answer
    assert max(answer) >= tiny.VOCAB, "the target never emits a padded row"
    drafted = {t for e in tiny.rounds(found) for t in e.tree.token[1:]}
    assert max(drafted) < min(target.vocab_size, changes["vocab_size"])


@pytest.mark.parametrize("method", tiny.DRAFTING)
def test_reduced_draft_vocabulary(method: Any) -> None:
    target = tiny.target("llama")
    known = list(range(1, tiny.VOCAB, 2))
    draft = tiny.drafter(target, vocab_ids=known, draft_vocab_size=len(known))
    config = DecodeConfig(method=method, max_new_tokens=LENGTH)
    found = tiny.events(Decoder(target, draft), tiny.PROMPT, config)
    answer = tiny.plain(tiny.family("llama"), tiny.PROMPT, config).token_ids
    assert tiny.finish(found).token_ids == answer
    assert any(t % 2 == 0 for t in answer)
    assert all(t % 2 for e in tiny.rounds(found) for t in e.tree.token[1:])


@pytest.mark.parametrize("method", tiny.TREES)
def test_sliding_window_counts_positions_not_rows(method: Any) -> None:
    """Far more siblings than the window is wide; by row index they would push the context out."""
    config = DecodeConfig(method=method, max_new_tokens=LENGTH)
    config = config.with_changes(budget=200, width=20, candidates=20, expansion_k=20)
    for name in ("mistral-window", "gemma3-sliding"):
        decoder = tiny.knowing(name, config, tiny.vaguely_right)
        found = tiny.events(decoder, tiny.PROMPT, config)
        answer = tiny.plain(decoder, tiny.PROMPT, config).token_ids
        assert tiny.finish(found).token_ids == answer
        first = tiny.rounds(found)[0].tree
        assert len(first.level(1)) > tiny.WINDOW
        assert tiny.finish(found).metrics["mean_acceptance_length"] > 1.5


def test_window_matters_to_these_models() -> None:
    """Guards the test above: without the window the answers would differ."""
    for name in ("mistral-window", "gemma3-sliding"):
        target = tiny.target(name)
        seen = target.forward(torch.tensor(tiny.PROMPT), target.new_cache()).logits[-1]
        wide = tiny.wrap(target.model)
        wide._window = 1000
        unlimited = wide.forward(torch.tensor(tiny.PROMPT), wide.new_cache()).logits[-1]
        assert not torch.allclose(seen, unlimited, atol=0.1)


@pytest.mark.parametrize("method", METHODS)
def test_seed_decides_the_answer(method: Any) -> None:
    decoder = tiny.family("llama")
    answers = []
    for seed in (1, 1, 2):
        config = DecodeConfig(method=method, max_new_tokens=LENGTH)
        config = config.with_changes(temperature=1.0, seed=seed)
        answers.append(decoder.generate(tiny.PROMPT, config).token_ids)
    assert answers[0] == answers[1]
    assert answers[0] != answers[2]


def test_methods_agree_on_what_a_seed_means() -> None:
    decoder = tiny.trained("tied")
    config = DecodeConfig(max_new_tokens=LENGTH).with_changes(temperature=1.0, seed=9)
    answers = {
        m: decoder.generate(tiny.PROMPT, config.with_changes(method=m)).token_ids for m in METHODS
    }
    assert len({tuple(a) for a in answers.values()}) == 1


def answers_of_every_kind() -> list[list[int]]:
    out = []
    for method in ("ar", "dartree", "ddtree"):
        for temperature in (0.0, 0.9):
            config = DecodeConfig(method=method, max_new_tokens=16)  # type: ignore[arg-type]
            config = config.with_changes(temperature=temperature, seed=5)
            out.append(list(tiny.trained("tied").generate(tiny.PROMPT, config).token_ids))
    return out


def test_another_process_answers_alike() -> None:
    root = Path(__file__).parents[3]
    script = (
        "from tests.core.engine.test_lossless import answers_of_every_kind as answers; "
        "print(answers())"
    )
    env = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, env=env, capture_output=True, check=True
    )
    here = answers_of_every_kind()
    assert json.loads(done.stdout) == here
    greedy, drawn = here[0::2], here[1::2]
    assert greedy[0] == greedy[1] == greedy[2]
    assert drawn[0] == drawn[1] == drawn[2] != greedy[0]


# The lean path and the budget policy change how fast, too


@functools.cache
def lean(name: str) -> Decoder:
    """The lean path in fp32, with a drafter that is sometimes right."""
    model: Any = copy.deepcopy(tiny.target(name).model)
    target = LeanTarget(model)
    draft = tiny.headless(target)
    answer = tiny.plain(tiny.family(name), tiny.PROMPT, DecodeConfig(max_new_tokens=LENGTH))
    draft.opinion = tiny.vaguely_right([*tiny.PROMPT, *answer.token_ids])
    return Decoder(target, draft)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("sampling", [None, "everything"])
@pytest.mark.parametrize("name", ["llama", "qwen2-tied", "qwen3-padded"])
def test_lean_path_equals_the_general_one(name: str, sampling: Any, method: Any) -> None:
    config = DecodeConfig(method=method, max_new_tokens=LENGTH)
    if sampling:
        config = sampled(sampling, method=method)
    session = lean(name).session()
    expected = tiny.plain(tiny.family(name), tiny.PROMPT, config).token_ids
    for prompt in (tiny.PROMPT, [7, 1], tiny.PROMPT):
        result = lean(name).generate(prompt, config, session=session)
        if prompt == tiny.PROMPT:
            assert result.token_ids == expected


@pytest.mark.parametrize("sampling", [None, "everything"])
@pytest.mark.parametrize("method", ["dartree", "dartree-fixed", "ddtree", "dflash", "domino"])
def test_automatic_budget_equals_plain(method: Any, sampling: Any) -> None:
    """Whatever the policy makes of this machine."""
    config = DecodeConfig(method=method, tree=TreeConfig(budget="auto"), max_new_tokens=60)
    if sampling:
        config = sampled(sampling, method=method, tree=TreeConfig(budget="auto"))
    decoder = tiny.trained("tied")
    found = tiny.events(decoder, tiny.PROMPT, config)
    assert tiny.finish(found).token_ids == tiny.plain(decoder, tiny.PROMPT, config).token_ids
    for e in tiny.rounds(found):
        assert not list(e.tree.problems())
        assert e.tree.num_verified <= max(e.budget, 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_half_precision_runs_and_reports(method: Any, dtype: torch.dtype) -> None:
    """No identity is claimed here: the shape of a batch changes rounding."""
    target_name, draft_name = tiny.TRAINED["tied"]
    target = load_target(tiny.CHECKPOINTS / target_name, device=torch.device("cpu"), dtype=dtype)
    decoder = Decoder(target, load_drafter(tiny.CHECKPOINTS / draft_name, target))
    config = DecodeConfig(method=method, max_new_tokens=LENGTH, detail="full", stages=True)
    found = tiny.events(decoder, tiny.PROMPT, config)
    result = tiny.finish(found)
    assert len(result.token_ids) == LENGTH
    assert result.metrics["num_emitted_tokens"] == LENGTH
    for e in tiny.rounds(found):
        assert not list(e.tree.problems())
    if method != "ar":
        exact = tiny.trained("tied").generate(tiny.PROMPT, config).metrics
        # Rounding may cost a token here and there, not the draft's sense of position.
        ours, theirs = result.metrics["mean_acceptance_length"], exact["mean_acceptance_length"]
        assert ours > 1 + 0.5 * (theirs - 1)

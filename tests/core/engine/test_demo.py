"""The demo trio, real weights and real text: same answers, and the drafter's published worth."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dartree_core.bundles.resolution import resolve
from dartree_core.config import METHODS, DecodeConfig
from dartree_core.draft import load_drafter
from dartree_core.engine import Decoder
from dartree_core.models import load_target, load_tokenizer
from tests.core import tiny

pytestmark = pytest.mark.demo

PROMPTS = ["Explain what a binary search does.", "Write a haiku about the sea. 🙂"]
LENGTH = 12


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    """The general path in fp32, where identity is claimed."""
    found = resolve("demo")
    target = load_target(found.target.path, device=torch.device("cpu"), dtype=torch.float32)
    assert found.draft is not None
    draft = load_drafter(Path(found.draft.path), target)
    return Decoder(target, draft, load_tokenizer(found.target.path))


@pytest.mark.parametrize(
    ("prompt", "temperature"), [(PROMPTS[0], 0.0), (PROMPTS[1], 0.8)], ids=["greedy", "sampled"]
)
def test_every_method_equals_plain(decoder: Decoder, prompt: str, temperature: float) -> None:
    config = DecodeConfig(max_new_tokens=LENGTH).with_changes(
        temperature=temperature, repetition_penalty=1.1 if temperature else 1.0, seed=4, budget=12
    )
    answers = {m: decoder.generate(prompt, config.with_changes(method=m)) for m in METHODS}
    for method, answer in answers.items():
        assert answer.token_ids == answers["ar"].token_ids, method
        assert answer.text == answers["ar"].text
        assert answer.text


def test_plain_decoding_equals_transformers(decoder: Decoder) -> None:
    prompt = decoder.encode(PROMPTS[0]).ids
    config = DecodeConfig(method="ar", max_new_tokens=LENGTH)
    ours = decoder.generate(prompt, config).token_ids
    assert list(ours) == tiny.greedy_transformers(decoder.target, prompt, LENGTH)


def test_a_conversation_reuses_what_was_read(decoder: Decoder) -> None:
    session = decoder.session()
    config = DecodeConfig(max_new_tokens=8).with_changes(budget=16)
    messages = [{"role": "user", "content": "Name a colour."}]
    first = decoder.generate(messages, config, session=session)
    messages += [
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "Another one."},
    ]
    warm = decoder.generate(messages, config, session=session)
    assert warm.token_ids == decoder.generate(messages, config).token_ids


def test_the_tree_is_worth_more_than_the_chain(decoder: Decoder) -> None:
    """Ordering of the methods on one answer; figures of the whole set are in the benchmarks."""
    config = DecodeConfig(max_new_tokens=40, ignore_eos=True).with_changes(budget=16)
    lengths = {}
    for method in ("dflash", "domino", "dartree"):
        metrics = decoder.generate(PROMPTS[0], config.with_changes(method=method)).metrics
        lengths[method] = metrics["mean_acceptance_length"]
    assert 1.1 < lengths["dflash"] <= lengths["domino"] < lengths["dartree"]

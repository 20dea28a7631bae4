"""Every correction head under every builder says exactly what plain decoding says, in fp32."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from dartree_core.config import DecodeConfig, SamplingConfig
from dartree_core.engine import Decoder
from dartree_core.events import BlockDrafted
from tests.core import tiny

LENGTH = 20
DSPARK: dict[str, Any] = {
    "emb_dim": None,
    "gru_hidden_dim": None,
    "projector_type": "dspark",
    "markov_rank": 6,
}
HEADS: dict[str, dict[str, Any]] = {
    "none": {"projector_type": None},
    "domino": {},
    "domino-uncorrected-first-slot": {"pure_draft_prefix_len": 1, "shift_label": True},
    "vanilla": {**DSPARK, "markov_head_type": "vanilla"},
    "gated": {**DSPARK, "markov_head_type": "gated", "enable_confidence_head": False},
    "rnn": {**DSPARK, "markov_head_type": "rnn"},
    "rnn-without-anchor": {
        **DSPARK,
        "markov_head_type": "rnn",
        "sample_from_anchor": False,
        "confidence_head_with_markov": False,
    },
    "dflash2": {
        "projector_type": None,
        "selector_rank": 5,
        "selector_top_k": 7,
        "conv_kernel_size": 2,
        "conv_group_size": 8,
    },
}
SAMPLING = {
    "greedy": SamplingConfig(),
    "sampled": SamplingConfig(temperature=0.9, top_p=0.95, repetition_penalty=1.1, seed=7),
}


@functools.cache
def decoder(head: str, family: str, sampling: str) -> Decoder:
    """A drafter with that head which often has the true token among its best three."""
    draft = tiny.drafter(tiny.target(family), **HEADS[head])
    for p in draft.head.parameters():
        p.mul_(0.5)  # corrections that re-rank, and do not drown what the drafter knows
    turn = DecodeConfig(sampling=SAMPLING[sampling], max_new_tokens=LENGTH)
    answer = tiny.plain(tiny.family(family), tiny.PROMPT, turn).token_ids
    draft.opinion = tiny.vaguely_right([*tiny.PROMPT, *answer])
    return Decoder(tiny.target(family), draft)


@pytest.mark.parametrize("method", tiny.DRAFTING)
@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("head", HEADS)
def test_every_head_under_every_builder(head: str, sampling: str, method: Any) -> None:
    config = DecodeConfig(method=method, sampling=SAMPLING[sampling], max_new_tokens=LENGTH)
    found = tiny.events(decoder(head, "llama", sampling), tiny.PROMPT, config)
    answer = tiny.plain(tiny.family("llama"), tiny.PROMPT, config).token_ids
    assert tiny.finish(found).token_ids == answer
    assert all(not list(e.tree.problems()) for e in tiny.rounds(found))
    if method in tiny.TREES:
        assert tiny.finish(found).metrics["num_accepted_draft_tokens"] > 0


@pytest.mark.parametrize("head", HEADS)
def test_targets_with_more_tokens_than_the_drafter_knows(head: str) -> None:
    """Roots beyond the head's tables."""
    config = DecodeConfig(max_new_tokens=LENGTH)
    result = decoder(head, "qwen3-padded", "greedy").generate(tiny.PROMPT, config)
    answer = tiny.plain(tiny.family("qwen3-padded"), tiny.PROMPT, config).token_ids
    assert result.token_ids == answer
    assert max(answer) >= tiny.VOCAB, "no such root occurs"


@pytest.mark.parametrize("head", ["vanilla", "rnn", "dflash2"])
def test_a_budget_that_sizes_itself(head: str) -> None:
    config = DecodeConfig(max_new_tokens=LENGTH).with_changes(budget="auto")
    result = decoder(head, "llama", "greedy").generate(tiny.PROMPT, config)
    assert result.token_ids == tiny.plain(tiny.family("llama"), tiny.PROMPT, config).token_ids


@pytest.mark.parametrize("head", ["vanilla", "gated", "rnn", "dflash2"])
def test_a_reduced_vocabulary(head: str) -> None:
    known = list(range(1, tiny.VOCAB, 2))
    draft = tiny.drafter(
        tiny.target("llama"), vocab_ids=known, draft_vocab_size=len(known), **HEADS[head]
    )
    config = DecodeConfig(max_new_tokens=LENGTH)
    found = tiny.events(Decoder(tiny.target("llama"), draft), tiny.PROMPT, config)
    answer = tiny.plain(tiny.family("llama"), tiny.PROMPT, config).token_ids
    assert tiny.finish(found).token_ids == answer
    assert all(t % 2 for e in tiny.rounds(found) for t in e.tree.token[1:])


@pytest.mark.parametrize("method", ["domino", "dartree", "dartree-fixed"])
def test_the_selector_chooses_among_its_candidates_only(method: Any) -> None:
    """Chain and tree alike: of tokens beyond its seven likeliest it knows nothing."""
    draft = tiny.drafter(tiny.target("llama"), **HEADS["dflash2"])
    config = DecodeConfig(method=method, stages=True, max_new_tokens=LENGTH)
    config = config.with_changes(graft=False)
    found = tiny.events(Decoder(tiny.target("llama"), draft), tiny.PROMPT, config)
    blocks = {e.round: e for e in found if isinstance(e, BlockDrafted)}
    for done in tiny.rounds(found):
        tree = done.tree
        for i in range(1, len(tree)):
            assert tree.token[i] in blocks[done.round].token[tree.slot[i]][:7]

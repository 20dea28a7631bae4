"""Decoding with static shapes, recorded as on CUDA, still says what plain decoding says."""

from __future__ import annotations

import functools
import gc
from dataclasses import replace

import pytest
import torch

from dartree_core.config import METHODS, DecodeConfig, Method, SamplingConfig, TreeConfig
from dartree_core.draft import load_drafter
from dartree_core.engine import Decoder
from dartree_core.engine.footprint import predict
from dartree_core.errors import CapacityError
from dartree_core.events import RunStarted, TreeVerified
from dartree_core.models import LeanTarget, load_target
from dartree_core.models.graphs import Graphs
from tests.core import tiny
from tests.core.fake_graphs import FakeRecorder

PAIR = "tied-uncorrected-first-slot"
PROMPT = [7, 100, 31, 8, 250]
SAMPLING = {
    "greedy": SamplingConfig(),
    "sampled": SamplingConfig(temperature=0.9, top_k=20, seed=3),
    "penalised": SamplingConfig(repetition_penalty=1.3),
}


@functools.cache
def decoder(*, recorded: bool = True, broken: bool = False) -> Decoder:
    target_name, draft_name = tiny.TRAINED[PAIR]
    folder, cpu = tiny.CHECKPOINTS, torch.device("cpu")
    model = load_target(folder / target_name, device=cpu, dtype=torch.float32, lean=True)
    assert isinstance(model, LeanTarget)
    model.use_static(Graphs(FakeRecorder(broken=broken) if recorded else None))
    return Decoder(model, load_drafter(folder / draft_name, model, lean=True))


def graphs_of(found: Decoder) -> Graphs:
    assert found.target.graphs is not None
    return found.target.graphs


@pytest.mark.parametrize("sampling", sorted(SAMPLING))
@pytest.mark.parametrize("method", METHODS)
def test_the_answer_is_plain_decodings(method: Method, sampling: str) -> None:
    config = DecodeConfig(method=method, max_new_tokens=20, sampling=SAMPLING[sampling])
    plain = tiny.plain(tiny.trained(PAIR), PROMPT, config).token_ids
    assert decoder().generate(PROMPT, config).token_ids == plain
    assert not graphs_of(decoder()).failures


def test_a_new_conversation_may_use_what_another_left() -> None:
    """Idle memory with fixed addresses is still allocated, so it is not free, but it is lent."""
    made = decoder()
    config = DecodeConfig(max_new_tokens=8)
    needed = predict(made.target, made.drafter, len(PROMPT), config)
    made.generate(PROMPT, config)
    gc.collect()
    made.free_bytes = lambda device: needed.total - needed.target_kv // 2
    try:
        assert len(made.generate(PROMPT, config).token_ids) == 8
        with pytest.raises(CapacityError):
            made.generate(PROMPT * 300, config)
    finally:
        made.free_bytes = lambda device: None


@pytest.mark.parametrize("budget", [1, 9, "auto"])
def test_budgets(budget: int) -> None:
    config = DecodeConfig(max_new_tokens=40, tree=TreeConfig(budget=budget))
    plain = tiny.plain(tiny.trained(PAIR), PROMPT, config).token_ids
    for recorded in (True, False):
        assert decoder(recorded=recorded).generate(PROMPT, config).token_ids == plain


def test_rounds_are_the_same_rounds() -> None:
    """Trees, fates and accepted paths, not only the text."""
    config = DecodeConfig(max_new_tokens=40, detail="full")
    ours, theirs = (
        [
            (r.tree.token, r.tree.parent, r.tree.kept, r.tree.state, r.accepted, r.bonus_fate)
            for r in tiny.rounds(tiny.events(found, PROMPT, config))
        ]
        for found in (decoder(), tiny.trained(PAIR))
    )
    assert ours == theirs


def test_a_watched_tree_is_the_same_tree() -> None:
    config = DecodeConfig(max_new_tokens=20, stages=True)
    ours, theirs = (
        [e.choice for e in tiny.events(found, PROMPT, config) if isinstance(e, TreeVerified)]
        for found in (decoder(), tiny.trained(PAIR))
    )
    assert ours == theirs


def test_turns_of_one_conversation_and_of_another_in_between() -> None:
    ours, oracle = decoder(), tiny.trained(PAIR)
    config = DecodeConfig(max_new_tokens=12)
    session, other = ours.session(), ours.session()
    prompt = list(PROMPT)
    running = ours.stream([9, 9, 40], replace(config, stages=True), session=other)
    for more in ([3, 4], [5], [6, 7, 8]):
        answer = ours.generate(prompt, config, session=session).token_ids
        assert answer == tiny.plain(oracle, prompt, config).token_ids
        for _ in range(5):  # the other conversation stands still between any two events
            next(running, None)
        prompt += [*answer, *more]
        del prompt[-2:]  # and goes on from inside the answer
    rest = tiny.finish(list(running)).token_ids
    assert rest == tiny.plain(oracle, [9, 9, 40], config).token_ids


def test_a_second_conversation_records_nothing_new() -> None:
    ours = decoder()
    config = DecodeConfig(max_new_tokens=30)
    for _ in range(3):
        ours.generate(PROMPT, config)
    before = graphs_of(ours).recorded
    ours.generate(PROMPT, config)
    assert graphs_of(ours).recorded == before


def test_where_recording_fails_decoding_goes_on_without(caplog: pytest.LogCaptureFixture) -> None:
    ours = decoder(broken=True)
    config = DecodeConfig(max_new_tokens=30)
    plain = tiny.plain(tiny.trained(PAIR), PROMPT, config).token_ids
    for _ in range(2):
        assert ours.generate(PROMPT, config).token_ids == plain
    kinds = sorted(graphs_of(ours).failures)
    assert kinds == ["block", "context", "pass", "tree"]
    assert len([r for r in caplog.records if "CUDA graphs" in r.message]) == len(kinds)


def test_the_header_says_how_passes_are_launched() -> None:
    started = tiny.events(decoder(), PROMPT, DecodeConfig(max_new_tokens=2))[0]
    assert isinstance(started, RunStarted)
    assert "graphs" in started.target["path"]

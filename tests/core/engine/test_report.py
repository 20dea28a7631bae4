"""What readers see of a round: states, fates, scores and the finer events."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest
import torch

from dartree_core.config import METHODS, DecodeConfig, SamplingConfig
from dartree_core.draft.graft import GRAFTED
from dartree_core.engine import Decoder
from dartree_core.engine.defaults import eos_ids, sampling_defaults
from dartree_core.events import (
    BlockDrafted,
    DepthExpanded,
    RunStarted,
    TreePruned,
    TreeVerified,
    decode,
    encode,
)
from dartree_core.glances import Follow, StepByStep, Watcher
from tests.core import tiny

STAGE_EVENTS = (BlockDrafted, DepthExpanded, TreePruned, TreeVerified)
FULL = DecodeConfig(detail="full", stages=True, max_new_tokens=24)


def all_rounds(method: Any = "dartree", **changes: Any) -> list[Any]:
    config = FULL.with_changes(method=method, **changes)
    return tiny.rounds(tiny.events(tiny.trained("tied"), tiny.PROMPT, config))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("method", tiny.DRAFTING)
def test_states_are_what_the_walk_did(method: Any, temperature: float) -> None:
    seen = set()
    for e in all_rounds(method, temperature=temperature, budget=16):
        assert not list(e.tree.problems())
        hits = {i for i, s in enumerate(e.tree.state) if s == "hit"}
        assert hits == set(e.accepted)
        for i, state in enumerate(e.tree.state):
            parent_hit = e.tree.parent[i] in hits
            if state == "walked_past":
                assert parent_hit
            if state == "unreached":
                assert not parent_hit
        assert e.accepted == e.tree.path(e.accepted[-1])
        seen |= set(e.tree.state)
    assert "hit" in seen
    if method == "dartree":
        assert seen == {"hit", "walked_past", "unreached", "pruned"}


def test_every_fate_of_the_bonus_token_occurs_and_is_true() -> None:
    fates = set()
    for changes in (
        {"budget": 4, "candidates": 4, "expansion_k": 4},
        {"budget": 12, "width": 12, "candidates": 64},
        {"budget": 3, "width": 3, "candidates": 500},
        {"block_size": 2},
    ):
        for e in all_rounds(temperature=0.9, max_new_tokens=60, **changes):
            if e.bonus is None:
                assert e.bonus_fate is None
                continue
            fates.add(e.bonus_fate)
            last = e.accepted[-1]
            children = {e.tree.token[i]: i for i in e.tree.children(last)}
            if e.bonus_fate == "final_pruned":
                assert not e.tree.kept[children[e.bonus]]
            else:
                assert e.bonus not in children
            if e.bonus_fate == "not_expanded":
                assert e.tree.depth[last] == max(e.tree.depth)
    assert fates == {"not_proposed", "level_pruned", "final_pruned", "not_expanded"}


@pytest.mark.parametrize("method", tiny.DRAFTING)
def test_target_scores_are_those_of_a_plain_pass_over_the_path(method: Any) -> None:
    target = tiny.trained("tied").target
    answer = tiny.plain(tiny.trained("tied"), tiny.PROMPT, FULL).token_ids
    context = [*tiny.PROMPT, *answer]
    for e in all_rounds(method, budget=16)[:3]:
        past = context[: e.position]
        for node in range(1, len(e.tree)):
            if not e.tree.kept[node]:
                assert math.isnan(e.tree.target_logp[node])
                assert math.isnan(e.tree.coverage[node])
                continue
            path = [e.tree.token[i] for i in e.tree.path(node)]
            out = target.forward(torch.tensor([*past, *path]), target.new_cache())
            logp = out.logits[-2].log_softmax(-1)
            assert e.tree.target_logp[node] == pytest.approx(float(logp[path[-1]]), abs=2e-3)
            rank = int((logp > logp[path[-1]]).sum()) + 1
            assert abs(e.tree.target_rank[node] - rank) <= 1
            children = [c for c in e.tree.children(node) if e.tree.kept[c]]
            below = out.logits[-1].softmax(-1)
            mass = float(sum(below[e.tree.token[c]] for c in children))
            assert e.tree.coverage[node] == pytest.approx(mass, abs=2e-3)


@pytest.mark.parametrize("method", tiny.DRAFTING)
def test_path_scores_add_up(method: Any) -> None:
    bonus = -0.2 if method == "dartree" else 0.0
    for e in all_rounds(method):
        t = e.tree
        for i in range(1, len(t)):
            assert t.slot[i] == t.depth[i] - 1
            assert t.path_logp[i] == pytest.approx(
                t.path_logp[t.parent[i]] + t.head_logp[i], abs=1e-4
            )
            assert t.select[i] == pytest.approx(t.path_logp[i] + bonus * t.depth[i], abs=1e-4)
            assert t.head_rank[i] >= 1
            assert t.draft_rank[i] >= 1


class Glancing:
    """A watcher that sees the stages of all rounds in a row, and notes what they cost."""

    def __init__(self) -> None:
        self.costs: list[float] = []

    def follow(self) -> Follow:
        return Follow.GLANCE

    def told(self, seconds: float) -> None:
        self.costs.append(seconds)


def events_for(watcher: Watcher, config: DecodeConfig, prompt: list[int] = tiny.PROMPT) -> Any:
    known = tiny.trained("tied")
    decoder = Decoder(known.target, known.drafter)  # which has not learned from other turns
    session = decoder.session()
    session.watcher = watcher
    return tiny.events(decoder, prompt, config, session=session)


@pytest.mark.parametrize("graft", [False, True])
@pytest.mark.parametrize("method", tiny.DRAFTING)
def test_a_glance_tells_what_steps_tell(method: Any, graft: bool) -> None:
    """Told in a row, from the whole tree, or level by level while it grows."""
    config = FULL.with_changes(method=method, budget=16, graft=False)
    prompt = tiny.PROMPT
    if graft:  # text that repeats itself has something to copy
        if method not in GRAFTED:
            return
        prompt = 3 * [*tiny.PROMPT, *tiny.finish(events_for(StepByStep(), config)).token_ids]
        config = config.with_changes(graft=True)
    glancing = Glancing()
    stages: list[list[Any]] = [
        [e for e in events_for(watcher, config, prompt) if isinstance(e, STAGE_EVENTS)]
        for watcher in (StepByStep(), glancing)
    ]
    if graft:  # each level is told again, as it was joined to
        again = {(e.round, e.depth): e for e in stages[0] if isinstance(e, DepthExpanded)}
        assert len(again) < sum(isinstance(e, DepthExpanded) for e in stages[0])
        stages[0] = [
            e for e in stages[0] if not isinstance(e, DepthExpanded) or again[e.round, e.depth] is e
        ]
    assert list(map(type, stages[0])) == list(map(type, stages[1]))
    for ours, theirs in zip(*stages, strict=True):
        for item in fields(ours):
            one, other = getattr(ours, item.name), getattr(theirs, item.name)
            if item.name.endswith("logp"):
                assert torch.allclose(torch.tensor(one), torch.tensor(other), atol=1e-4)
            elif item.name != "considered" or not graft:
                assert one == other, item.name
    rounds = {e.round for e in stages[1]}
    assert len(glancing.costs) == len(rounds)
    assert all(cost > 0 for cost in glancing.costs)


@pytest.mark.parametrize("watcher", [StepByStep(), Glancing()], ids=["steps", "glances"])
@pytest.mark.parametrize("method", tiny.DRAFTING)
def test_stage_events_tell_the_same_tree_as_the_round(method: Any, watcher: Watcher) -> None:
    """Live viewers grow the tree from the finer events; it must be the tree of the round."""
    config = FULL.with_changes(method=method, budget=16)
    grown: dict[int, tuple[int, int, int, float]] = {}
    kept: list[int] = []
    blocks = depths = 0
    verified: TreeVerified | None = None
    for event in events_for(watcher, config):
        match event:
            case BlockDrafted():
                blocks += 1
                assert len(event.token) == tiny.trained("tied").drafter.spec.num_slots()  # type: ignore[union-attr]
            case DepthExpanded():
                assert event.depth == depths + 1
                depths = event.depth
                assert event.considered >= len(event.node)
                columns = (event.node, event.token, event.parent, event.path_logp)
                for node, token, parent, path in zip(*columns, strict=True):
                    grown[node] = (token, parent, event.depth, path)
            case TreePruned():
                kept = list(event.kept)
            case TreeVerified():
                verified = event
        for e in tiny.rounds([event]):
            assert verified is not None
            if len(e.tree) > 1:
                nodes = range(1, len(e.tree))
                t = e.tree
                assert grown == {
                    i: (t.token[i], t.parent[i], t.depth[i], t.path_logp[i]) for i in nodes
                }
                assert kept == [i for i, k in enumerate(t.kept) if k] == list(verified.node)
                choice = dict(zip(verified.node, verified.choice, strict=True))
                walked = [choice[i] for i in e.accepted]
                assert [*(t.token[i] for i in e.accepted[1:]), walked[-1]] == walked
                if e.bonus is not None:
                    assert walked[-1] == e.bonus
            grown, kept, depths = {}, [], 0
    assert blocks > 3


@pytest.mark.parametrize("stages", [False, True])
@pytest.mark.parametrize("detail", ["basic", "full"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_what_is_reported_does_not_change_what_is_said(
    temperature: float, detail: str, stages: bool
) -> None:
    decoder = tiny.trained("tied")
    config = DecodeConfig(max_new_tokens=24).with_changes(
        temperature=temperature, repetition_penalty=1.2, detail=detail, stages=stages
    )
    found = tiny.events(decoder, tiny.PROMPT, config)
    assert tiny.finish(found).token_ids == tiny.plain(decoder, tiny.PROMPT, config).token_ids
    full = detail == "full"
    for e in tiny.rounds(found):
        assert (e.tree.target_logp is not None) == (e.tree.coverage is not None) == full
    kinds = {type(e) for e in found}
    assert ({BlockDrafted, DepthExpanded, TreePruned, TreeVerified} <= kinds) == stages
    for event in found:
        assert decode(encode(event)) is not None


@pytest.mark.parametrize("method", METHODS)
def test_the_header_names_models_settings_and_prompt(method: Any) -> None:
    decoder = tiny.trained("tied")
    config = DecodeConfig(method=method, max_new_tokens=2).with_changes(seed=77, temperature=1.0)
    head = next(iter(decoder.stream(tiny.PROMPT, config)))
    assert isinstance(head, RunStarted)
    assert head.target["name"] == "target_tied"
    assert head.target["layers"] == decoder.target.num_layers
    assert head.drafter["name"] == "draft_tied_p0_s0"
    assert head.drafter["num_slots"] == 7
    assert (head.device, head.dtype, head.seed) == ("cpu", "float32", 77)
    assert DecodeConfig.from_dict(head.config) == config
    assert head.prompt_ids == tiny.PROMPT
    assert {"python", "torch", "transformers"} <= head.versions.keys()


class Holder:
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


@pytest.mark.parametrize(
    ("generation", "config", "tokenizer", "expected"),
    [
        ([2, 5], 7, 9, {2, 5}),
        (2, 7, 9, {2}),
        (0, 7, 9, {0}),
        (None, [7, 8], 9, {7, 8}),
        (None, None, 9, {9}),
        (None, None, None, set()),
    ],
)
def test_end_tokens_come_from_the_first_place_that_names_any(
    generation: Any, config: Any, tokenizer: Any, expected: set[int]
) -> None:
    model = Holder(
        generation_config=Holder(eos_token_id=generation), config=Holder(eos_token_id=config)
    )
    assert eos_ids(model, Holder(eos_token_id=tokenizer)) == expected
    if tokenizer is None:
        assert eos_ids(model, None) == expected


def test_models_own_sampling_defaults() -> None:
    from transformers import GenerationConfig

    sampled = GenerationConfig(
        do_sample=True, temperature=0.6, top_k=20, top_p=0.95, min_p=0.1, repetition_penalty=1.1
    )
    found = sampling_defaults(Holder(generation_config=sampled))
    assert (found.temperature, found.top_k, found.top_p, found.min_p) == (0.6, 20, 0.95, 0.1)
    assert found.repetition_penalty == 1.1
    greedy = GenerationConfig(do_sample=False, repetition_penalty=1.1)
    found = sampling_defaults(Holder(generation_config=greedy))
    assert (found.temperature, found.repetition_penalty) == (0.0, 1.1)
    assert sampling_defaults(Holder()).greedy
    odd = Holder(do_sample=True, temperature=0.6, top_k=-1, top_p=1.2, repetition_penalty=0)
    found = sampling_defaults(Holder(generation_config=odd))
    assert found == SamplingConfig(temperature=0.6)
    assert eos_ids(Holder(config=Holder(eos_token_id="</s>")), None) == frozenset()


def test_loops_read_the_target_as_tensors_do(monkeypatch: pytest.MonkeyPatch) -> None:
    from dartree_core import compiled

    assert compiled.available()
    by_loops = all_rounds(budget=16)
    monkeypatch.setattr(compiled, "loaded", lambda: None)
    for ours, theirs in zip(by_loops, all_rounds(budget=16), strict=True):
        assert ours.tree.target_rank == theirs.tree.target_rank
        for name in ("target_logp", "coverage"):
            pair = getattr(ours.tree, name), getattr(theirs.tree, name)
            assert pair[0] == pytest.approx(pair[1], abs=1e-4, nan_ok=True)

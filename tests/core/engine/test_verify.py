"""The target's pass over a tree: layout, walk, and what is left in the cache afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dartree_core.config import DecodeConfig, SamplingConfig
from dartree_core.draft.supertree import Supertree
from dartree_core.engine import Session
from dartree_core.engine.sampling import Chooser
from dartree_core.engine.verify import VerifyPlan, walk
from dartree_core.events import RoundDone
from dartree_core.models import Target
from tests.core import tiny


def tree_of(parent: list[int], token: list[int], kept: list[int] | None = None) -> Supertree:
    depth = [0]
    for p in parent[1:]:
        depth.append(depth[p] + 1)
    zeros, ranks = torch.zeros(len(parent)), torch.zeros(len(parent), dtype=torch.int64)
    return Supertree(
        token=torch.tensor(token),
        parent=torch.tensor(parent),
        depth=torch.tensor(depth),
        draft_logp=zeros,
        head_logp=zeros,
        path_logp=zeros,
        draft_rank=ranks,
        head_rank=ranks,
        kept=torch.tensor(kept) if kept else torch.arange(len(parent)),
    )


BUSHY = [-1, 0, 0, 0, 1, 1, 3, 4, 6]
TOKENS = [7, 1, 2, 3, 4, 5, 4, 6, 6]


EITHER = pytest.mark.parametrize("lay_out", [VerifyPlan.of_arrays, VerifyPlan.of_tensors])


@EITHER
def test_positions_are_the_roots_plus_the_depth(
    lay_out: Callable[[Supertree, int], VerifyPlan],
) -> None:
    plan = lay_out(tree_of(BUSHY, TOKENS), 20)
    assert plan.position.tolist() == [20, 21, 21, 21, 22, 22, 22, 23, 23]


@EITHER
def test_layout_of_a_pruned_tree_renumbers_parents_and_hides_cousins(
    lay_out: Callable[[Supertree, int], VerifyPlan],
) -> None:
    plan = lay_out(tree_of(BUSHY, TOKENS, [0, 1, 3, 6, 8]), 0)
    assert plan.token.tolist() == [7, 1, 3, 4, 6]
    assert plan.parent.tolist() == [-1, 0, 0, 2, 3]
    assert plan.visible.int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 0, 1, 0, 0],
        [1, 0, 1, 1, 0],
        [1, 0, 1, 1, 1],
    ]


class Listening(Chooser):
    """Remembers what it was asked."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.asked: list[tuple[int, tuple[int, ...]]] = []

    def choose(self, logits: Any, positions: Any, paths: Any) -> Any:
        self.asked += [(p, tuple(path)) for p, path in zip(positions, paths, strict=True)]
        return super().choose(logits, positions, paths)


def scores(*choices: int) -> torch.Tensor:
    return 9.0 * torch.nn.functional.one_hot(torch.tensor(choices), 10).float()


def test_walk_follows_choices_through_scattered_rows() -> None:
    plan = VerifyPlan.of(tree_of(BUSHY, TOKENS), 5)
    verdict = walk(plan, scores(3, 0, 0, 4, 0, 0, 6, 0, 9), Chooser(SamplingConfig(), [1], CPU))
    assert (verdict.accepted, verdict.tokens, verdict.bonus) == ([0, 3, 6, 8], [3, 4, 6], 9)


def test_walk_takes_the_child_of_the_node_it_stands_on() -> None:
    """Token 4 hangs under two parents, token 6 under two grandparents."""
    plan = VerifyPlan.of(tree_of(BUSHY, TOKENS), 5)
    verdict = walk(plan, scores(1, 4, 0, 4, 6, 0, 6, 8, 9), Chooser(SamplingConfig(), [1], CPU))
    assert (verdict.accepted, verdict.bonus) == ([0, 1, 4, 7], 8)


def test_walk_asks_for_the_position_after_the_node_and_the_nodes_own_path() -> None:
    sampling = SamplingConfig(repetition_penalty=1.2)
    chooser = Listening(sampling, [1], CPU)
    plan = VerifyPlan.of(tree_of(BUSHY, TOKENS), 5)
    walk(plan, scores(3, 0, 0, 4, 0, 0, 6, 0, 9), chooser)
    assert chooser.asked == [(6, ()), (7, (3,)), (8, (3, 4)), (9, (3, 4, 6))]
    everywhere = Listening(sampling, [1], CPU)
    walk(plan, scores(*[0] * 9), everywhere, every_row=True)
    assert everywhere.asked == [
        (6, ()),
        (7, (1,)),
        (7, (2,)),
        (7, (3,)),
        (8, (1, 4)),
        (8, (1, 5)),
        (8, (3, 4)),
        (9, (1, 4, 6)),
        (9, (3, 4, 6)),
    ]


CPU = torch.device("cpu")


@st.composite
def labelled_trees(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Trees of up to 20 nodes over 12 tokens, siblings distinct."""
    parent, token, used = [-1], [0], [set[int]()]
    for i in range(1, draw(st.integers(1, 20))):
        p = draw(st.integers(0, i - 1))
        free = sorted(set(range(tiny.FEW)) - used[p])
        if not free:
            continue
        parent.append(p)
        token.append(draw(st.sampled_from(free)))
        used[p].add(token[-1])
        used.append(set())
    return parent, token


@settings(max_examples=30)
@given(labelled_trees(), st.integers(1, 9))
def test_every_row_of_a_tree_scores_as_its_path_alone_would(
    labelled: tuple[list[int], list[int]], past: int
) -> None:
    """One pass over any tree equals one plain pass for each of its paths."""
    parent, token = labelled
    target = tiny.enumerable().target
    context = [(5 * i) % tiny.FEW for i in range(past)]
    cache = target.new_cache()
    target.forward(torch.tensor(context), cache)
    cache.commit(torch.arange(past))
    plan = VerifyPlan.of(tree_of(parent, token), past)
    out = target.forward(
        plan.token, cache, positions=plan.position, visible=plan.visible, taps=(0, 2)
    )
    assert out.features is not None
    for row in range(len(token)):
        path, node = [], row
        while node >= 0:
            path.append(token[node])
            node = parent[node]
        whole = target.forward(
            torch.tensor([*context, *path[::-1]]), target.new_cache(), taps=(0, 2)
        )
        assert whole.features is not None
        torch.testing.assert_close(out.logits[row], whole.logits[-1], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(out.features[row], whole.features[-1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["llama", "gemma3-sliding", "mistral-window", "qwen3-moe"])
def test_cache_after_scattered_acceptance_equals_plain_decodings(name: str) -> None:
    """Accepted rows are moved together in path order; nothing else stays behind."""
    config = DecodeConfig(max_new_tokens=30)
    decoder = tiny.knowing(name, config, tiny.vaguely_right)
    session = decoder.session()
    scattered = 0
    for event in decoder.stream(tiny.PROMPT, config, session=session):
        if isinstance(event, RoundDone):
            scattered += list(event.accepted) != list(range(len(event.accepted)))
            assert event.kv_length == session.cache.length == len(session.ids)
            assert_cache_holds(session, decoder.target)
    assert scattered > 1
    other = decoder.session()
    plain = config.with_changes(method="ar")
    decoder.generate(tiny.PROMPT, plain, session=other)
    assert other.ids == session.ids
    for ours, theirs in zip(session.cache.layers, other.cache.layers, strict=True):
        n = len(session.ids)
        torch.testing.assert_close(ours.keys[:, :, :n], theirs.keys[:, :, :n], **CLOSE)
        torch.testing.assert_close(ours.values[:, :, :n], theirs.values[:, :, :n], **CLOSE)


CLOSE: dict[str, Any] = {"atol": 2e-4, "rtol": 1e-4}


def assert_cache_holds(session: Session, target: Target) -> None:
    cache = target.new_cache()
    target.forward(torch.tensor(session.ids), cache)
    n = len(session.ids)
    for ours, theirs in zip(session.cache.layers, cache.layers, strict=True):
        torch.testing.assert_close(ours.keys[:, :, :n], theirs.keys[:, :, :n], **CLOSE)
        torch.testing.assert_close(ours.values[:, :, :n], theirs.values[:, :, :n], **CLOSE)


def test_rounds_start_where_the_cache_ends() -> None:
    decoder = tiny.trained("tied")
    config = DecodeConfig(max_new_tokens=30)
    at = len(tiny.PROMPT)
    for event in tiny.rounds(tiny.events(decoder, tiny.PROMPT, config)):
        assert event.position == at
        at += len(event.tokens)
        assert event.kv_length == at

"""Trees as tensors: what descends from what, and what survives pruning."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dartree_core.draft.supertree import (
    Supertree,
    ancestors,
    ancestors_by_squaring,
    order_of_arrays,
    order_of_tensors,
)

EITHER = pytest.mark.parametrize("find", [ancestors, ancestors_by_squaring])


@st.composite
def parents(draw: st.DrawFn, most: int = 40) -> list[int]:
    count = draw(st.integers(1, most))
    return [-1, *(draw(st.integers(0, i - 1)) for i in range(1, count))]


def path_to(parent: list[int], node: int) -> set[int]:
    found = set()
    while node >= 0:
        found.add(node)
        node = parent[node]
    return found


@EITHER
@given(parent=parents())
def test_ancestors_are_the_rows_on_the_path_to_the_root(
    find: Callable[[torch.Tensor], torch.Tensor], parent: list[int]
) -> None:
    seen = find(torch.tensor(parent))
    assert seen.dtype == torch.bool
    for i in range(len(parent)):
        assert set(seen[i].nonzero()[:, 0].tolist()) == path_to(parent, i)


@EITHER
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 9, 33, 200])
def test_ancestors_of_a_chain_are_all_before(
    find: Callable[[torch.Tensor], torch.Tensor], length: int
) -> None:
    chain = torch.arange(length) - 1
    assert torch.equal(find(chain), torch.ones(length, length, dtype=torch.bool).tril())


def tree_of(parent: list[int], steps: list[float], bonus: float = 0.0) -> Supertree:
    """Path scores are float32 sums, as the builders make them."""
    depth, path = [0], [torch.tensor(0.0)]
    for p, step in zip(parent[1:], steps, strict=False):
        depth.append(depth[p] + 1)
        path.append(path[p] + torch.tensor(step))
    zeros, ranks = torch.zeros(len(parent)), torch.zeros(len(parent), dtype=torch.int64)
    return Supertree(
        token=torch.arange(len(parent)),
        parent=torch.tensor(parent),
        depth=torch.tensor(depth),
        draft_logp=zeros,
        head_logp=zeros,
        path_logp=torch.stack(path),
        draft_rank=ranks,
        head_rank=ranks,
        kept=torch.arange(len(parent)),
        depth_bonus=bonus,
    )


QUANTISED = st.sampled_from([0.0, -0.0, -0.25, -0.5, -1.0, float("-inf"), -1e-9, -0.1, -0.3])
BROKEN = st.one_of(QUANTISED, st.just(float("nan")))
BONUSES = st.sampled_from([0.0, -0.2, -1.0, -5.0, -1e-9])


@given(parents(), st.lists(QUANTISED, min_size=40, max_size=40), BONUSES, st.integers(0, 45))
def test_pruning_with_ties_never_orphans_and_keeps_the_best(
    parent: list[int], steps: list[float], bonus: float, budget: int
) -> None:
    tree = tree_of(parent, steps, bonus)
    tree.prune(budget)
    kept = tree.kept.tolist()
    assert kept == sorted(set(kept))
    assert kept[0] == 0
    assert len(kept) == min(budget, tree.num_nodes) + 1
    for node in kept[1:]:
        assert parent[node] in kept
    keys = tree.select.tolist()
    dropped = set(range(1, len(parent))) - set(kept)
    if dropped and len(kept) > 1:
        assert min(keys[i] for i in kept[1:]) >= max(keys[i] for i in dropped)


@given(parents(), st.lists(BROKEN, min_size=40, max_size=40), BONUSES, st.integers(1, 45))
def test_pruning_scores_that_are_no_numbers_never_orphans(
    parent: list[int], steps: list[float], bonus: float, budget: int
) -> None:
    tree = tree_of(parent, steps, bonus)
    tree.prune(budget)
    kept = tree.kept.tolist()
    assert len(kept) == min(budget, tree.num_nodes) + 1
    assert all(parent[node] in kept for node in kept[1:])


@given(parents(), st.lists(QUANTISED, min_size=40, max_size=40), st.data())
def test_pruning_twice_is_pruning_once(
    parent: list[int], steps: list[float], data: st.DataObject
) -> None:
    larger = data.draw(st.integers(1, 45))
    smaller = data.draw(st.integers(1, larger))
    once, twice = tree_of(parent, steps), tree_of(parent, steps)
    once.prune(smaller)
    twice.prune(larger)
    twice.prune(smaller)
    assert once.kept.tolist() == twice.kept.tolist()


@given(parents(), st.lists(st.sampled_from((0.0, -0.5, -0.2)), min_size=40, max_size=40), st.data())
def test_pruning_on_the_host_keeps_the_same(
    parent: list[int], steps: list[float], data: st.DataObject
) -> None:
    budget, bonus = data.draw(st.integers(1, 45)), data.draw(st.sampled_from((0.0, -0.2, -1.0)))
    here, there = tree_of(parent, steps, bonus), tree_of(parent, steps, bonus)
    here.prune_on_host(budget)
    there.prune(budget)
    assert here.kept.tolist() == there.kept.tolist()


@given(st.lists(st.sampled_from((0.0, -0.5, -1.0, -3e38, -math.inf, math.nan)), max_size=40))
def test_host_and_accelerator_agree_on_an_order(keys: list[float]) -> None:
    values = torch.tensor(keys, dtype=torch.float32)
    assert order_of_arrays(values.numpy()).tolist() == order_of_tensors(values).tolist()


def test_a_longer_chain_of_equal_keys_is_cut_from_its_end() -> None:
    """Research code can drop the parent and keep the child here."""
    tree = tree_of([-1, *range(9)], [0.0] * 9)
    for budget in range(9, 0, -1):
        tree.prune(budget)
        assert tree.kept.tolist() == list(range(budget + 1))


def test_depth_bonus_prefers_shallow_nodes() -> None:
    parent, steps = [-1, 0, 1, 0], [-0.1, -0.05, -0.4]
    deep, shallow = tree_of(parent, steps, 0.0), tree_of(parent, steps, -0.5)
    for tree in (deep, shallow):
        tree.prune(2)
    assert deep.kept.tolist() == [0, 1, 2]
    assert shallow.kept.tolist() == [0, 1, 3]


def test_a_bare_root_proposes_nothing() -> None:
    tree = Supertree.root_only(torch.tensor([7]))
    assert (tree.num_nodes, tree.token.tolist(), tree.parent.tolist()) == (0, [7], [-1])
    assert tree.kept.tolist() == [0]
    tree.prune(1)
    assert tree.kept.tolist() == [0]


@EITHER
def test_ancestors_of_every_small_tree(find: Callable[[torch.Tensor], torch.Tensor]) -> None:
    for shape in itertools.product(*(range(i) for i in range(1, 6))):
        parent = [-1, *shape]
        seen = find(torch.tensor(parent))
        for i in range(6):
            assert set(seen[i].nonzero()[:, 0].tolist()) == path_to(parent, i)

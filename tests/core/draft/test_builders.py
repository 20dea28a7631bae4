"""Tree builders against a slow, plain re-derivation, and what must hold for any input."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dartree_core.config import TreeConfig
from dartree_core.draft import BUILDERS, BlockDraft, CorrectionHead, Supertree, build_dartree
from dartree_core.draft.heads import DominoHead, NoHead
from dartree_core.draft.spec import DraftSpec
from dartree_core.draft.supertree import Level, finish
from dartree_core.draft.vocabulary import DraftVocabulary
from dartree_core.errors import ConfigError
from tests.core import tiny

SIZE = 16
ROOT = torch.tensor([3])


def block_of(logits: torch.Tensor, ids: torch.Tensor | None = None) -> BlockDraft:
    hidden = torch.randn(len(logits), tiny.HIDDEN, generator=torch.Generator().manual_seed(1))
    return BlockDraft(hidden, logits, DraftVocabulary(logits.shape[1], ids))


def embed(tokens: torch.Tensor) -> torch.Tensor:
    table = torch.randn(64, tiny.HIDDEN, generator=torch.Generator().manual_seed(2))
    return table[tokens]


def domino(prefix: int = 0, seed: int = 0, size: int = SIZE) -> DominoHead:
    config = tiny.draft_config(tiny.target("llama"), vocab_size=size, pure_draft_prefix_len=prefix)
    head = DominoHead(DraftSpec.from_config(config))
    generator = torch.Generator().manual_seed(seed)
    for p in head.parameters():
        p.data = 0.6 * torch.randn(p.shape, generator=generator)
    return head.requires_grad_(False)


def built(method: Any, block: BlockDraft, head: CorrectionHead, **tree: Any) -> Supertree:
    config = TreeConfig(**tree)
    return finish(BUILDERS[method](block, head, ROOT, embed, config, block.num_slots))


def logits(depth: int, size: int = SIZE, seed: int = 0) -> torch.Tensor:
    return 2 * torch.randn(depth, size, generator=torch.Generator().manual_seed(seed))


def slow_scores(
    block: BlockDraft, head: CorrectionHead, path: list[int], c: int
) -> dict[int, float]:
    """Candidates of the slot after `path` and their corrected log-probabilities."""
    slot = len(path)
    base = block.base_logits[slot]
    if slot < head.prefix_len:
        logp = base.log_softmax(-1)
        return {int(r): float(logp[r]) for r in range(len(base))}
    state = head.root_state(ROOT, embed(ROOT))
    for token in path:
        state = head.advance(state, torch.tensor([token]), embed(torch.tensor([token])))
    rows = base.topk(min(c, len(base))).indices
    shared = head.prepare(block.hidden)[slot]
    logp = (base[rows] + head.correct(shared, state, rows)[0]).log_softmax(-1)
    return {int(r): float(x) for r, x in zip(rows, logp, strict=True)}


def slow_dartree(
    block: BlockDraft, head: CorrectionHead, t: TreeConfig
) -> dict[tuple[int, ...], float]:
    """Paths of the supertree and their scores, level by level."""
    branch = min(t.expansion_k, block.base_logits.shape[1], t.limit)
    width = min(t.width, branch)
    frontier: dict[tuple[int, ...], float] = {(): 0.0}
    tree: dict[tuple[int, ...], float] = {}
    for _ in range(block.num_slots):
        pairs = []
        for path, score in frontier.items():
            c = max(t.expansion_k, t.candidates)
            children = slow_scores(block, head, list(path), c)
            best = sorted(children.items(), key=lambda kv: -kv[1])[:branch]
            pairs += [((*path, token), score + logp) for token, logp in best]
        frontier = dict(sorted(pairs, key=lambda kv: -kv[1])[:width])
        tree |= frontier
    return tree


def paths_of(tree: Supertree) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for i in range(1, tree.num_nodes + 1):
        found.append((*found[int(tree.parent[i])], int(tree.token[i])))
    return found


@pytest.mark.parametrize("prefix", [0, 1, 2])
@pytest.mark.parametrize(
    "tree",
    [
        {"budget": 9, "width": 4},
        {"budget": 6, "width": 9, "expansion_k": 2},
        {"budget": 12, "width": 5, "candidates": 3, "expansion_k": 3},
        {"budget": 3, "width": 8, "depth_bonus": -2.0},
        {"budget": 999, "width": 999, "candidates": 999, "expansion_k": 999},
    ],
    ids=str,
)
def test_dartree_equals_a_derivation_node_by_node(tree: dict[str, Any], prefix: int) -> None:
    depth = 2 if tree["width"] > 100 else 5
    block, head, config = block_of(logits(depth)), domino(prefix), TreeConfig(**tree)
    ours = built("dartree", block, head, **tree)
    theirs = slow_dartree(block, head, config)
    paths = paths_of(ours)
    assert set(paths[1:]) == set(theirs)
    for path, score in zip(paths[1:], ours.path_logp[1:].tolist(), strict=True):
        assert score == pytest.approx(theirs[path], abs=1e-4)
    keys = {p: s + config.depth_bonus * len(p) for p, s in theirs.items()}
    best = sorted(keys, key=lambda p: -keys[p])[: config.limit]
    assert {paths[i] for i in ours.kept.tolist()[1:]} == set(best)


def verified(tree: Supertree) -> dict[tuple[int, ...], float]:
    """Paths and their scores, of the nodes to verify."""
    paths = paths_of(tree)
    return {paths[i]: float(tree.path_logp[i]) for i in tree.kept.tolist()[1:]}


@given(
    seed=st.integers(0, 999),
    enough=st.integers(1, 40),
    width=st.integers(1, 8),
    bonus=st.sampled_from([0.0, -0.2, -3.0]),
    sharpness=st.sampled_from([0.0, 0.5, 2.0, 8.0]),
)
@settings(max_examples=60, deadline=None)
def test_growth_stops_only_where_nothing_deeper_is_kept(
    seed: int, enough: int, width: int, bonus: float, sharpness: float
) -> None:
    block = block_of(sharpness * logits(6, seed=seed))
    config = TreeConfig(budget=enough, width=width, depth_bonus=bonus)
    grow = BUILDERS["dartree"]
    whole = finish(grow(block, domino(), ROOT, embed, config, 6))
    short = finish(grow(block, domino(), ROOT, embed, config, 6, enough))
    # Levels may be narrower too, so nodes have other ids, and products of fewer rows round
    # otherwise.
    assert verified(short) == pytest.approx(verified(whole), rel=1e-5)
    assert short.num_nodes <= whole.num_nodes


def test_growth_does_stop() -> None:
    """Guards the test above."""
    config = TreeConfig(budget=4, width=8, depth_bonus=0.0)
    block = block_of(0.3 * logits(6))
    tree = finish(BUILDERS["dartree"](block, NoHead(), ROOT, embed, config, 6, 4))
    assert int(tree.depth.max()) < 6
    nan = block_of(torch.full((6, SIZE), float("nan")))
    tree = finish(BUILDERS["dartree"](nan, NoHead(), ROOT, embed, config, 6, 4))
    assert int(tree.depth.max()) == 6


def test_the_correction_is_what_tells_the_trees_apart() -> None:
    """Guards the test above: with this head the path matters."""
    block = block_of(logits(4))
    corrected = paths_of(built("dartree", block, domino(), budget=16))
    plain = paths_of(built("dartree", block, NoHead(), budget=16))
    assert corrected != plain


@pytest.mark.parametrize("budget", [1, 4, 7, 20])
def test_fixed_quotas_spend_exactly_the_budget(budget: int) -> None:
    tree = built("dartree-fixed", block_of(logits(7)), domino(), budget=budget)
    assert tree.num_nodes == budget == len(tree.kept) - 1
    sizes = [int((tree.depth == d).sum()) for d in range(1, 8)]
    left = budget
    for i, size in enumerate(sizes):
        assert size == math.ceil(left / (7 - i))
        left -= size


def test_a_chain_is_a_tree_of_one_candidate_width_one() -> None:
    block = block_of(logits(6))
    chain = built("domino", block, domino(1))
    thin = built("dartree", block, domino(1), width=1, candidates=SIZE, expansion_k=SIZE)
    assert paths_of(chain) == paths_of(thin)
    torch.testing.assert_close(chain.path_logp, thin.path_logp)
    assert (
        built("dflash", block, domino()).token[1:].tolist() == block.base_logits.argmax(-1).tolist()
    )


@pytest.mark.parametrize("budget", [1, 5, 30, 10_000])
def test_best_first_tree_holds_the_likeliest_products(budget: int) -> None:
    depth, size = 3, 5
    block = block_of(logits(depth, size))
    tree = built("ddtree", block, NoHead(), budget=budget)
    logp = block.base_logits.log_softmax(-1)
    every = {
        path: float(sum(logp[i, t] for i, t in enumerate(path)))
        for d in range(1, depth + 1)
        for path in itertools.product(range(size), repeat=d)
    }
    best = sorted(every, key=lambda p: -every[p])[:budget]
    assert set(paths_of(tree)[1:]) == set(best)


QUANTISED = st.sampled_from([0.0, 1.0, 2.0, 3.0, 30.0, -1e9, float("-inf")])


@st.composite
def tied_logits(draw: st.DrawFn) -> torch.Tensor:
    """Few distinct values, so that almost every choice is a tie."""
    depth, size = draw(st.integers(1, 4)), draw(st.integers(1, 7))
    rows = st.lists(QUANTISED, min_size=size, max_size=size)
    return torch.tensor(draw(st.lists(rows, min_size=depth, max_size=depth)))


TREES = st.builds(
    TreeConfig,
    budget=st.integers(1, 40),
    width=st.integers(1, 20),
    candidates=st.integers(1, 20),
    expansion_k=st.integers(1, 20),
    depth_bonus=st.sampled_from([0.0, -0.2, -5.0]),
)


@settings(max_examples=150)
@given(tied_logits(), TREES, st.sampled_from(sorted(BUILDERS)), st.integers(0, 3), st.booleans())
def test_any_builder_on_tied_scores_makes_a_well_formed_tree(
    table: torch.Tensor, config: TreeConfig, method: Any, prefix: int, corrects: bool
) -> None:
    head: CorrectionHead = domino(prefix, size=table.shape[1]) if corrects else NoHead()
    block = block_of(table)
    levels: list[Level] = []
    steps = BUILDERS[method](block, head, ROOT, embed, config, len(table))
    while True:
        try:
            levels.append(next(steps)())
        except StopIteration as stop:
            tree: Supertree = stop.value
            break
    parent, kept = tree.parent.tolist(), tree.kept.tolist()
    assert kept[0] == 0
    assert all(0 <= parent[i] < i for i in range(1, len(parent)))
    assert all(parent[i] in kept for i in kept[1:]), "an orphan survived the pruning"
    depths = tree.depth.tolist()
    assert all(depths[i] == depths[parent[i]] + 1 for i in range(1, len(parent)))
    paths = paths_of(tree)
    assert len(set(paths)) == len(paths), "a path occurs twice"
    if method in tiny.TREES:
        assert 1 <= len(kept) - 1 <= config.limit
    assert [lv.depth for lv in levels] == list(range(1, len(levels) + 1))
    assert sorted(n for lv in levels for n in lv.node.tolist()) == list(range(1, len(parent)))
    for lv in levels:
        assert lv.token.tolist() == tree.token[lv.node].tolist()
        assert lv.parent.tolist() == tree.parent[lv.node].tolist()
        assert lv.considered >= len(lv.node)
    assert len(tree.candidates) == len(levels)
    for i in range(1, len(parent)):
        assert int(tree.token[i]) in tree.candidates[depths[i] - 1].tolist()


@pytest.mark.parametrize("method", sorted(BUILDERS))
def test_reduced_vocabulary_maps_every_token(method: Any) -> None:
    ids = torch.tensor([2 * i + 1 for i in range(SIZE)])
    table = logits(4)
    identity = built(method, block_of(table), NoHead(), budget=20)
    mapped = built(method, block_of(table, ids), NoHead(), budget=20)
    assert mapped.token[1:].tolist() == ids[identity.token[1:]].tolist()
    for ours, theirs in zip(mapped.candidates, identity.candidates, strict=True):
        assert ours.tolist() == ids[theirs].tolist()


@pytest.mark.parametrize("method", sorted(BUILDERS))
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_depth_limit_is_kept(method: Any, depth: int) -> None:
    block = block_of(logits(4))
    tree = finish(BUILDERS[method](block, domino(), ROOT, embed, TreeConfig(budget=30), depth))
    assert int(tree.depth.max()) == depth


def test_head_is_called_once_per_depth_not_per_node() -> None:
    head = domino()
    calls: list[int] = []
    original = head.correct

    def correct(shared: Any, states: torch.Tensor, candidates: Any) -> torch.Tensor:
        calls.append(len(states))
        return original(shared, states, candidates)

    head.correct = correct  # type: ignore[method-assign]
    built("dartree", block_of(logits(6)), head, budget=64, width=12)
    assert calls == [1, 12, 12, 12, 12, 12]


def test_public_builder_checks_its_settings() -> None:
    block = block_of(logits(4))
    with pytest.raises(ConfigError, match="depth_bonus"):
        build_dartree(block, domino(), ROOT, embed, depth_bonus=0.1)
    with pytest.raises(ConfigError, match="budget"):
        build_dartree(block, domino(), ROOT, embed, budget=0)
    tree = build_dartree(block, domino(), ROOT, embed, budget=8, variant="fixed", max_depth=99)
    assert (tree.num_nodes, int(tree.depth.max())) == (8, 4)


def test_domino_state_is_torchs_own_gru() -> None:
    head = domino()
    tokens = torch.tensor([3, 9, 1, 14])
    state = head.root_state(tokens[:1], embed(tokens[:1]))
    for i in range(1, 4):
        state = head.advance(state, tokens[i : i + 1], embed(tokens[i : i + 1]))
    _, last = head.prefix_gru(embed(tokens)[None])
    torch.testing.assert_close(state, last[0])
    hidden = torch.randn(1, tiny.HIDDEN)
    split = head.correct(head.prepare(hidden)[0], state, None)
    torch.testing.assert_close(split, head.embed_proj(torch.cat((hidden, state), -1)))
    rows = torch.tensor([5, 0, 11])
    torch.testing.assert_close(head.correct(head.prepare(hidden)[0], state, rows), split[:, rows])


@pytest.mark.parametrize("reduced", [False, True])
def test_a_lean_head_grows_the_same_tree(reduced: bool) -> None:
    """The table replaces a product of the same numbers, whatever the vocabulary's order."""
    ids = torch.randperm(64, generator=torch.Generator().manual_seed(4))[:SIZE]
    block = block_of(logits(6), ids if reduced else None)
    plain, tabled = domino(1), domino(1)
    lean = tabled.lean(block.vocabulary.target_ids(ROOT.device), embed, "dense")
    trees = [built("dartree", block, head, budget=20, width=6) for head in (plain, lean)]
    assert torch.equal(trees[0].token, trees[1].token)
    assert torch.equal(trees[0].parent, trees[1].parent)
    assert torch.equal(trees[0].kept, trees[1].kept)
    torch.testing.assert_close(trees[0].path_logp, trees[1].path_logp)


def test_a_table_that_would_be_too_large_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    from dartree_core.draft.heads import lean_domino as module

    monkeypatch.setattr(module, "_MOST_BYTES", 10)
    head = domino().lean(torch.arange(SIZE), embed, "dense")
    state = head.root_state(ROOT, embed(ROOT))
    token = torch.tensor([5])
    assert torch.equal(head.follow(state, token, embed), head.advance(state, token, embed(token)))

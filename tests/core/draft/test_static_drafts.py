"""Static drafts are what drafts of their own shape are, trees included, recorded or not."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from dartree_core.config import Method, TreeConfig
from dartree_core.draft import BlockDraft, DraftCache, Drafter
from dartree_core.draft import static as static_module
from dartree_core.draft.growing import grow
from dartree_core.draft.packing import Layout, hosted, pack
from dartree_core.draft.supertree import Supertree
from dartree_core.models import LeanTarget, buckets
from dartree_core.models.graphs import Graphs
from tests.core import tiny
from tests.core.fake_graphs import FakeRecorder

CLOSE = {"atol": 2e-4, "rtol": 1e-4}
ROOT = torch.tensor([7])
KINDS: dict[str, dict[str, Any]] = {
    "domino": {},
    "shifted": {"shift_label": True, "pure_draft_prefix_len": 1},
    "sliding": {
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": tiny.WINDOW,
    },
    "reduced": {"draft_vocab_size": 20, "vocab_ids": list(range(3, 43, 2))},
}


@pytest.fixture(params=["plain", "recorded"])
def graphs(request: pytest.FixtureRequest) -> Graphs:
    return Graphs(FakeRecorder() if request.param == "recorded" else None)


def drafters(graphs: Graphs, kind: str = "domino") -> tuple[Drafter, Drafter]:
    """The same drafter, with shapes of its own and with static ones."""
    target = LeanTarget(copy.deepcopy(tiny.target("llama").model))
    own, fixed = (tiny.drafter(target, **KINDS[kind]) for _ in range(2))
    fixed.use_static(graphs)
    return own, fixed


def features(drafter: Drafter, count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    width = len(drafter.taps) * drafter.target.hidden_size
    return torch.randn(count, width, generator=generator)


def assert_same_context(ours: DraftCache, theirs: DraftCache) -> None:
    assert ours.length == theirs.length
    for mine, other in zip(ours.context(), theirs.context(), strict=True):
        torch.testing.assert_close(mine, other, **CLOSE)


def assert_same_tree(ours: Supertree, theirs: Supertree) -> None:
    for name in ("token", "parent", "depth", "draft_rank", "head_rank", "kept"):
        assert getattr(ours, name).tolist() == getattr(theirs, name).tolist(), name
    for name in ("draft_logp", "head_logp", "path_logp", "select"):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), **CLOSE)
    for mine, other in zip(ours.candidates, theirs.candidates, strict=True):
        assert mine.tolist() == other.tolist()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_contexts_blocks_and_trees_agree(kind: str, graphs: Graphs) -> None:
    pair = drafters(graphs, kind)
    caches = [drafter.new_cache() for drafter in pair]
    # As turns go: a prompt, rounds of a few rows, a crop behind the end of an answer.
    for step, count in enumerate((150, 1, 3, 3, 16, 2, 5)):
        for drafter, cache in zip(pair, caches, strict=True):
            drafter.extend(features(drafter, count, step), cache)
            if step == 4:
                cache.crop(160)
        assert_same_context(caches[1], caches[0])
        for size in (None, 4):
            blocks = [d.draft(ROOT, c, size) for d, c in zip(pair, caches, strict=True)]
            torch.testing.assert_close(blocks[1].hidden, blocks[0].hidden, **CLOSE)
            torch.testing.assert_close(blocks[1].base_logits, blocks[0].base_logits, **CLOSE)
            trees = [
                grow(d, "dartree", b, ROOT, c, TreeConfig(budget=9, width=4), b.num_slots)
                for d, b, c in zip(pair, blocks, caches, strict=True)
            ]
            assert_same_tree(trees[1], trees[0])
    assert not graphs.failures


@pytest.mark.parametrize("method", ["dflash", "domino", "ddtree", "dartree", "dartree-fixed"])
def test_methods_grow_the_same_trees(method: Method, graphs: Graphs) -> None:
    pair = drafters(graphs)
    caches = [drafter.new_cache() for drafter in pair]
    for step in range(3):
        for depth in (5, 2):
            trees = []
            for drafter, cache in zip(pair, caches, strict=True):
                drafter.extend(features(drafter, 2, step), cache)
                block = drafter.draft(ROOT, cache)
                settings = TreeConfig(budget=12, width=5)
                trees.append(grow(drafter, method, block, ROOT, cache, settings, depth))
            assert_same_tree(trees[1], trees[0])
            assert int(trees[1].depth.max()) <= depth
    assert not graphs.failures
    recorded = [key for key in _tape(caches[1]) if key[0] == "tree"]
    assert len(recorded) == (2 if graphs.recorded and method != "ddtree" else 0)


def _tape(cache: DraftCache) -> list[Any]:
    assert isinstance(cache, static_module.StaticDraftCache)
    return list(cache.arena.tape.replays)


def test_coupled_blocks_are_ranked_by_their_own_logits_and_scale(graphs: Graphs) -> None:
    """Both change every round, so neither may be part of a recording."""
    pair = drafters(graphs)
    caches = [drafter.new_cache() for drafter in pair]
    for step, scale in enumerate((1.0, 0.5, 2.5, 1.7)):
        noise = torch.randn(5, tiny.VOCAB, generator=torch.Generator().manual_seed(step))
        trees = []
        for drafter, cache in zip(pair, caches, strict=True):
            drafter.extend(features(drafter, 1, step), cache)
            block = drafter.draft(ROOT, cache)
            block = BlockDraft(
                block.hidden, scale * block.base_logits + noise, block.vocabulary, scale
            )
            settings = TreeConfig(budget=12, width=5)
            trees.append(grow(drafter, "dartree", block, ROOT, cache, settings, 5))
        assert_same_tree(trees[1], trees[0])


def test_a_context_may_outgrow_its_arena(graphs: Graphs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "_SMALLEST_ARENA", 256)
    pair = drafters(graphs)
    caches = [drafter.new_cache() for drafter in pair]
    for step in range(3):
        for count in (128, 3):
            for drafter, cache in zip(pair, caches, strict=True):
                drafter.extend(features(drafter, count, step), cache)
        blocks = [d.draft(ROOT, c) for d, c in zip(pair, caches, strict=True)]
        torch.testing.assert_close(blocks[1].base_logits, blocks[0].base_logits, **CLOSE)
    assert_same_context(caches[1], caches[0])


def test_a_packed_tree_comes_back_bit_for_bit() -> None:
    drafter, _ = drafters(Graphs())
    cache = drafter.new_cache()
    drafter.extend(features(drafter, 4), cache)
    block = drafter.draft(ROOT, cache)
    tree = grow(drafter, "dartree", block, ROOT, cache, TreeConfig(budget=9), 5)
    tree.path_logp[-1] = float("-inf")
    layout = Layout.of(tree)
    packed = pack(tree)
    assert packed.shape == (layout.size,)
    assert packed.dtype == torch.int64
    back = layout.unpack(packed)
    assert_same_tree(back, tree)
    assert torch.equal(back.path_logp, tree.path_logp)
    assert back.depth_bonus == tree.depth_bonus
    assert hosted(tree) is tree


def test_a_block_in_compiled_code_finds_the_arena(graphs: Graphs) -> None:
    """A session may outlive the static shapes it began with."""
    _, fixed = drafters(graphs)
    cache = fixed.new_cache()
    fixed.extend(features(fixed, 5), cache)
    like = torch.empty(fixed.spec.num_kv_heads, 0, fixed.spec.head_dim)
    held = cache.room(like, cache.length + 3)
    for layer, (keys, values) in enumerate(cache.context()):
        assert torch.equal(held[layer, 0, :, :5], keys)
        assert torch.equal(held[layer, 1, :, :5], values)
    assert held.shape[3] >= 8

"""Compiled loops grow the trees that the builders grow."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dartree_core import compiled as package
from dartree_core.config import Method, TreeConfig
from dartree_core.draft import BUILDERS, BlockDraft, Drafter, Supertree
from dartree_core.draft.growing import grow
from dartree_core.draft.heads import DominoHead, NoHead
from dartree_core.draft.heads.lean_domino import LeanDominoHead
from dartree_core.draft.opinion import Opinion
from dartree_core.draft.spec import DraftSpec
from dartree_core.draft.supertree import finish
from dartree_core.draft.vocabulary import DraftVocabulary
from tests.core import tiny

if not package.shares():
    pytest.skip("compiled code cannot share PyTorch's threads here", allow_module_level=True)

from dartree_core.compiled import products
from dartree_core.draft.builders.compiled import GROWN, CompiledGrowth, supports

WORDS = 96
METHODS: tuple[Method, ...] = ("dartree", "dartree-fixed")


def embed(tokens: torch.Tensor) -> torch.Tensor:
    table = torch.randn(WORDS, tiny.HIDDEN, generator=torch.Generator().manual_seed(2))
    return table[tokens]


def head_of(known: int, seed: int, *, prefix: int, biases: bool, state: int) -> DominoHead:
    config = tiny.draft_config(
        tiny.target("llama"), vocab_size=known, pure_draft_prefix_len=prefix, gru_hidden_dim=state
    )
    names = ("prefix_gru.bias_ih_l0", "embed_proj.0.bias", "embed_proj.2.bias")
    head = DominoHead(DraftSpec.from_config(config), dict.fromkeys(names, ()) if biases else None)
    generator = torch.Generator().manual_seed(seed)
    for p in head.parameters():
        p.data = 0.6 * torch.randn(p.shape, generator=generator)
    return head.requires_grad_(False)


class Case:
    """A block, a head of either kind, and the loops for it."""

    def __init__(
        self,
        known: int = 40,
        slots: int = 5,
        seed: int = 0,
        *,
        prefix: int = 0,
        biases: bool = False,
        reduced: bool = False,
        state: int = 12,
        scale: float = 1.0,
        rounded: bool = False,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randperm(WORDS, generator=generator)[:known] if reduced else None
        vocabulary = DraftVocabulary(known, ids)
        head = head_of(known, seed, prefix=prefix, biases=biases, state=state)
        if rounded:
            for p in head.parameters():
                p.data = p.data.half().float()
        self.logits = 2 * torch.randn(slots, known, generator=generator)
        hidden = torch.randn(slots, tiny.HIDDEN, generator=generator)
        self.block = BlockDraft(hidden, self.logits, vocabulary, scale)
        self.head = head.lean(vocabulary.target_ids(torch.device("cpu")), embed, "dense")
        self.loops = CompiledGrowth(self.head, vocabulary, embed, rounded=rounded)
        self.root = torch.tensor([seed % WORDS])

    def both(
        self, method: Method, tree: TreeConfig, depth: int, enough: int | None = None
    ) -> tuple[Supertree, Supertree]:
        """The loops' tree and the builder's."""
        ours = self.loops.grow(method, self.block, self.root, tree, depth, enough)
        build = BUILDERS[method]
        steps = build(self.block, self.head, self.root, embed, tree, depth, enough)
        return ours, finish(steps)


def assert_same(ours: Supertree, theirs: Supertree) -> None:
    for item in fields(Supertree):
        mine, other = getattr(ours, item.name), getattr(theirs, item.name)
        if not isinstance(other, torch.Tensor):
            continue
        if other.is_floating_point():
            torch.testing.assert_close(mine, other, atol=2e-4, rtol=2e-4, msg=item.name)
        else:
            assert mine.dtype == other.dtype
            assert torch.equal(mine, other), item.name
    assert ours.depth_bonus == theirs.depth_bonus
    assert [c.tolist() for c in ours.candidates] == [c.tolist() for c in theirs.candidates]


@settings(max_examples=150)
@given(
    seed=st.integers(0, 10_000),
    known=st.integers(2, 90),
    slots=st.integers(1, 6),
    state=st.integers(1, 9),
    options=st.fixed_dictionaries(
        {
            "prefix": st.integers(0, 3),
            "biases": st.booleans(),
            "reduced": st.booleans(),
            "scale": st.sampled_from((1.0, 0.5, 1.7)),
        }
    ),
    method=st.sampled_from(METHODS),
    settings_of_tree=st.fixed_dictionaries(
        {
            "budget": st.integers(1, 40),
            "width": st.integers(1, 14),
            "candidates": st.integers(1, 99),
            "expansion_k": st.integers(1, 99),
            "depth_bonus": st.sampled_from((0.0, -0.2, -2.0)),
        }
    ),
    cut=st.integers(0, 3),
    enough=st.none() | st.integers(1, 45),
)
def test_the_same_trees(
    seed: int,
    known: int,
    slots: int,
    state: int,
    options: dict[str, Any],
    method: Method,
    settings_of_tree: dict[str, Any],
    cut: int,
    enough: int | None,
) -> None:
    case = Case(known, slots, seed, state=state, **options)
    tree = TreeConfig(**settings_of_tree)
    assert_same(*case.both(method, tree, max(1, slots - cut), enough))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", range(5))
def test_weights_that_float16_holds_grow_the_same_in_it(method: Method, seed: int) -> None:
    case = Case(known=80, slots=6, seed=seed, state=24, biases=True, rounded=True)
    assert case.loops._of_state.weights.dtype == np.float16
    assert_same(*case.both(method, TreeConfig(budget=24, width=8), 6))


@pytest.mark.parametrize("threads", [2, 3, 5])
@pytest.mark.parametrize("method", METHODS)
def test_any_number_of_threads_grows_the_same(
    method: Method, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "_WORTH_SHARING", 0)
    case = Case(known=90, slots=6, state=40, prefix=1)
    tree = TreeConfig(budget=30, width=9)
    before = torch.get_num_threads()
    found = []
    try:
        for count in (1, threads):
            torch.set_num_threads(count)
            found.append([case.both(method, tree, 6, enough)[0] for enough in (None, 7)])
    finally:
        torch.set_num_threads(before)
    for alone, shared in zip(*found, strict=True):
        assert alone.num_nodes > 7
        for item in fields(Supertree):
            mine, other = getattr(alone, item.name), getattr(shared, item.name)
            if isinstance(mine, torch.Tensor):
                assert torch.equal(mine, other), item.name
        assert [c.tolist() for c in alone.candidates] == [c.tolist() for c in shared.candidates]


@pytest.mark.parametrize("method", METHODS)
def test_tokens_ruled_out_are_never_preferred(method: Method) -> None:
    """Coupled drafts give what sampling cannot choose a score of minus infinity."""
    case = Case()
    case.logits[:, 3:] = float("-inf")
    tree = TreeConfig(budget=9, width=6, candidates=3, expansion_k=3)
    ours, theirs = case.both(method, tree, 5)
    assert_same(ours, theirs)
    assert set(ours.token[1:].tolist()) <= {0, 1, 2}


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("method", METHODS)
def test_overflow_ends_in_a_tree(method: Method, broken: float) -> None:
    """No token is worth anything then, but every id and parent is one."""
    case = Case()
    case.logits[1:] = broken
    ours, _ = case.both(method, TreeConfig(budget=12, width=5), 5, 12)
    assert (ours.token >= 0).all()
    assert (ours.token < 40).all()
    assert (ours.parent[1:] >= 0).all()
    assert (ours.parent < torch.arange(len(ours.parent))).all()
    assert len(ours.kept) == 13


def test_a_root_that_cannot_be_drafted_is_multiplied() -> None:
    case = Case(reduced=True)
    drafted = set(case.block.vocabulary.target_ids(torch.device("cpu")).tolist())
    for root in (min(set(range(WORDS)) - drafted), max(drafted), WORDS - 1):
        case.root = torch.tensor([root])
        assert_same(*case.both("dartree", TreeConfig(budget=8), 5))


def test_rows_of_a_larger_tensor_are_taken() -> None:
    case = Case()
    case.block.base_logits = torch.randn(5, 80)[:, ::2]
    case.block.hidden = torch.randn(tiny.HIDDEN, 5).T
    assert_same(*case.both("dartree", TreeConfig(budget=8), 5))


def test_which_heads_are_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    from dartree_core.draft.builders import compiled as trees
    from dartree_core.draft.heads import lean_domino

    published = head_of(40, 0, prefix=0, biases=False, state=12)
    ids = torch.arange(40)
    assert supports(published.lean(ids, embed, "dense"))
    assert not supports(published)
    assert not supports(NoHead())
    halves = LeanDominoHead(published.bfloat16(), ids, lambda t: embed(t).bfloat16(), "dense")
    assert not supports(halves)
    published.float()
    monkeypatch.setattr(trees, "_MOST_WEIGHTS", 10)
    assert not supports(published.lean(ids, embed, "dense"))
    monkeypatch.undo()
    monkeypatch.setattr(lean_domino, "_MOST_BYTES", 10)
    assert not supports(published.lean(ids, embed, "dense"))


@settings(max_examples=100)
@given(
    seed=st.integers(0, 10_000),
    slots=st.integers(1, 7),
    prefix=st.integers(0, 2),
    reduced=st.booleans(),
    biases=st.booleans(),
    method=st.sampled_from(sorted(GROWN)),
    first=st.integers(0, 7),
    data=st.data(),
)
def test_paths_are_scored_as_tensors_score_them(
    seed: int,
    slots: int,
    prefix: int,
    reduced: bool,
    biases: bool,
    method: Method,
    first: int,
    data: st.DataObject,
) -> None:
    """Tokens of the tree, others, and such as cannot be drafted."""
    case = Case(slots=slots, seed=seed, prefix=prefix, reduced=reduced, biases=biases, scale=0.7)
    tree, _ = case.both(method, TreeConfig(budget=9, width=4, candidates=6), slots)
    tokens = st.one_of(st.integers(0, WORDS - 1), st.sampled_from(tree.token[1:].tolist()))
    path = data.draw(st.lists(tokens, min_size=1, max_size=9))
    ours, theirs = (
        Opinion(tree, case.block, case.head, embed, method, growth).of(path, first)
        for growth in (case.loops, None)
    )
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine == pytest.approx(other, abs=2e-4, rel=2e-4)


def compiled_drafter() -> Drafter:
    model = tiny.trained("tied").target
    path = tiny.CHECKPOINTS / tiny.TRAINED["tied"][1]
    from dartree_core.draft import load_drafter

    drafter = load_drafter(path, model, lean=True)
    drafter.compile()
    return drafter


def test_decoding_grows_by_loops_where_it_can() -> None:
    drafter = compiled_drafter()
    assert drafter.growth is not None
    cache = drafter.new_cache()
    features = torch.randn(4, len(drafter.taps) * drafter.target.hidden_size)
    drafter.extend(features, cache)
    root, tree = torch.tensor([7]), TreeConfig(budget=8)
    block = drafter.draft(root, cache)
    for method in ("dartree", "dartree-fixed", "ddtree", "domino"):
        ours = grow(drafter, method, block, root, cache, tree, block.num_slots)
        by_loops, drafter.growth = drafter.growth, None
        theirs = grow(drafter, method, block, root, cache, tree, block.num_slots)
        drafter.growth = by_loops
        assert_same(ours, theirs)


def test_without_numba_the_builders_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "shares", lambda: False)
    drafter = compiled_drafter()
    assert drafter.growth is None
    cache = drafter.new_cache()
    block = drafter.draft(torch.tensor([7]), cache)
    tree = grow(drafter, "dartree", block, torch.tensor([7]), cache, TreeConfig(budget=8), 3)
    assert tree.num_nodes >= 8

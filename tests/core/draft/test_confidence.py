"""A head's confidence in its paths: a column beside the scores, for sizing trees."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from dartree_core.config import DecodeConfig, TreeConfig
from dartree_core.draft import BUILDERS, BlockDraft, Supertree
from dartree_core.draft.packing import Layout, pack
from dartree_core.draft.supertree import finish
from dartree_core.draft.vocabulary import DraftVocabulary
from dartree_core.engine import Decoder
from dartree_core.engine.budget import BudgetPolicy
from dartree_core.engine.calibration import Calibration
from dartree_core.engine.costs import PassCosts
from tests.core import tiny
from tests.core.draft.test_heads import SLOTS, embed, head_of, hidden_of, states_along
from tests.core.engine.test_heads_lossless import HEADS

ROOT = torch.tensor([3])
WITH = ("vanilla", "gated", "rnn", "confidence-of-slots")


def grown(name: str, method: Any, **tree: Any) -> Supertree:
    logits = 2 * torch.randn(SLOTS, tiny.VOCAB, generator=torch.Generator().manual_seed(0))
    block = BlockDraft(hidden_of(), logits, DraftVocabulary(tiny.VOCAB))
    return finish(BUILDERS[method](block, head_of(name), ROOT, embed, TreeConfig(**tree), SLOTS))


def path_of(tree: Supertree, node: int) -> list[int]:
    out = []
    while node >= 0:
        out.append(int(tree.token[node]))
        node = int(tree.parent[node])
    return out[::-1]


def column_of(tree: Supertree) -> Tensor:
    assert tree.confidence is not None
    return tree.confidence


@pytest.mark.parametrize("method", ["dartree", "dartree-fixed", "domino"])
@pytest.mark.parametrize("name", WITH)
def test_a_nodes_confidence_is_that_of_all_slots_up_to_its_own(name: str, method: Any) -> None:
    tree, head = grown(name, method, budget=12, width=5), head_of(name)
    shared = head.prepare(hidden_of())
    for node in range(1, tree.num_nodes + 1):
        path, expected = path_of(tree, node), torch.zeros(())
        for slot in range(len(path) - 1):
            own = head.confidence(shared[slot], states_along(head, shared, path[: slot + 1]))
            assert own is not None
            expected = expected + own[0].log()
        torch.testing.assert_close(column_of(tree)[node], expected)
    assert column_of(tree)[0] == 0


def test_estimates_join_scores_and_confidence_and_fall_along_paths() -> None:
    tree = grown("vanilla", "dartree", budget=12, width=5)
    torch.testing.assert_close(tree.estimates, tree.path_logp + column_of(tree))
    assert (tree.estimates[1:] <= tree.estimates[tree.parent[1:]]).all()
    best = tree.best_path_logps(5)
    order = torch.sort(tree.select[1:], descending=True, stable=True).indices[:5] + 1
    assert best == tree.estimates[order].tolist()
    kept = set(tree.kept.tolist())
    tree.confidence = None
    tree.prune(12)
    assert set(tree.kept.tolist()) == kept, "which nodes are kept is the method's own affair"


@pytest.mark.parametrize("name", ["none", "domino", "without-confidence", "selector"])
@pytest.mark.parametrize("method", sorted(BUILDERS))
def test_no_column_without_a_confidence_head(name: str, method: Any) -> None:
    tree = grown(name, method, budget=12)
    assert tree.confidence is None
    assert tree.estimates is tree.path_logp


@pytest.mark.parametrize("method", ["ddtree", "dflash"])
def test_no_column_where_the_head_is_not_asked(method: Any) -> None:
    assert grown("vanilla", method, budget=12).confidence is None


def test_the_column_travels_with_the_tree() -> None:
    tree = grown("rnn", "dartree", budget=12)
    there = Layout.of(tree).unpack(pack(tree))
    assert torch.equal(column_of(there), column_of(tree))


def confident(bias: float) -> Decoder:
    """A drafter whose confidence head always says sigmoid(bias), on a machine where rows are
    free."""
    draft = tiny.drafter(tiny.target("llama"), **HEADS["vanilla"])
    head: Any = draft.head
    head.confidence_head.proj.weight.zero_()
    head.confidence_head.proj.bias.fill_(bias)
    decoder = Decoder(tiny.target("llama"), draft)
    decoder.budget_policy().costs = PassCosts({1: 10.0, 65: 10.0})
    return decoder


def test_unsure_heads_get_smaller_trees() -> None:
    costs = PassCosts({1: 10.0, 65: 40.0})
    tree = grown("vanilla", "dartree", budget=40, width=12)
    sizes = []
    for doubt in (0.0, 1.0, 3.0):
        tree.confidence = -doubt * tree.depth.float()
        sizes.append(BudgetPolicy(costs, SLOTS).turn(10_000).size(tree.best_path_logps(40))[0])
    assert sizes[0] > sizes[1] > sizes[2]


class Recording(Calibration):
    """Remembers what it learnt from."""

    def __init__(self) -> None:
        super().__init__()
        self.scores: list[float] = []

    def learn(self, path_logp: Sequence[float], accepted: Sequence[bool]) -> None:
        self.scores += path_logp
        super().learn(path_logp, accepted)


def test_a_budget_learns_from_the_estimates_it_saw() -> None:
    """Were it to learn from bare scores, doubt would be counted twice."""
    decoder = confident(-3.0)
    policy = decoder.budget_policy()
    policy.calibration = seen = Recording()
    config = DecodeConfig(max_new_tokens=24).with_changes(budget="auto", graft=False)
    answer = tiny.plain(tiny.family("llama"), tiny.PROMPT, config).token_ids
    found = tiny.events(decoder, tiny.PROMPT, config)
    assert tiny.finish(found).token_ids == answer
    first = next(e.tree for e in tiny.rounds(found) if e.tree.num_verified)
    doubt = math.log1p(math.exp(3.0))
    verified = [i for i in range(1, len(first)) if first.kept[i]]
    expected = [first.path_logp[i] - doubt * first.depth[i] for i in verified]
    assert seen.scores[: len(verified)] == pytest.approx(expected, abs=1e-3)

"""Plain rounds take a short way; it must lead where the long one leads."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch

from dartree_core.draft.supertree import Supertree
from dartree_core.engine.report import describe_tree, read_targets
from dartree_core.engine.verify import Verdict, VerifyPlan
from dartree_core.tree import DraftTree


class Longer(Supertree):
    """A bare root that does not say that it is one."""

    @property
    def num_nodes(self) -> int:
        return 1


def long_way(root: int) -> Supertree:
    bare = Supertree.root_only(torch.tensor([root]))
    return Longer(**{item.name: getattr(bare, item.name) for item in fields(Supertree)})


def columns(tree: DraftTree) -> dict[str, Any]:
    return {item.name: getattr(tree, item.name) for item in fields(DraftTree)}


def test_the_plan_is_the_same() -> None:
    ours = VerifyPlan.of(Supertree.root_only(torch.tensor([7])), 41)
    theirs = VerifyPlan.of(long_way(7), 41)
    for item in fields(VerifyPlan):
        mine, other = getattr(ours, item.name), getattr(theirs, item.name)
        assert mine.dtype == other.dtype
        assert torch.equal(mine, other)


@pytest.mark.parametrize("full", [False, True])
def test_the_description_is_the_same(full: bool) -> None:
    logits = torch.randn(1, 30) if full else None
    verdict = Verdict([0], [], 3, [3])
    trees = []
    for tree in (Supertree.root_only(torch.tensor([7])), long_way(7)):
        plan = VerifyPlan.of(tree, 5)
        targets = None if logits is None else read_targets(plan, logits)
        described, accepted = describe_tree(tree, plan, verdict, targets)
        assert accepted == [0]
        assert not list(described.problems())
        trees.append(columns(described))
    assert trees[0] == trees[1]

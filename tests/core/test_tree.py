from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dartree_core.tree import DraftTree, rounded
from tests.core.strategies import accepted_path, trees


def tree(**changes: Any) -> DraftTree:
    """Root 1 with children 2 (kept, hit) and 3 (pruned); 2 has child 4 (kept)."""
    columns: dict[str, Any] = {
        "token": (1, 2, 3, 4),
        "parent": (-1, 0, 0, 1),
        "depth": (0, 1, 1, 2),
        "slot": (-1, 0, 0, 1),
        "draft_logp": (0.0, -0.5, -2.0, -1.0),
        "head_logp": (0.0, -0.25, -3.0, -0.5),
        "path_logp": (0.0, -0.25, -3.0, -0.75),
        "select": (0.0, -0.45, -3.2, -1.15),
        "kept": (True, True, False, True),
        "state": ("hit", "hit", "pruned", "walked_past"),
    }
    return DraftTree(**(columns | changes))


@given(trees())
def test_grown_trees_keep_every_invariant(t: DraftTree) -> None:
    assert list(t.problems()) == []
    kept = {i for i, k in enumerate(t.kept) if k}
    assert all(t.parent[i] in kept for i in kept - {0})
    assert t.num_verified == len(kept) - 1
    assert t.height == max(t.depth[i] for i in kept)
    path = accepted_path(t)
    assert t.path(path[-1]) == path
    assert set(path) <= kept
    for i in range(1, len(t)):
        assert i in t.children(t.parent[i])
        assert i in t.level(t.depth[i])
        assert math.isclose(t.path_logp[i], t.path_logp[t.parent[i]] + t.head_logp[i], abs_tol=1e-3)


@given(trees())
def test_the_cut_separates_what_was_kept_from_what_was_pruned(t: DraftTree) -> None:
    cut = t.cut()
    pruned = [t.select[i] for i, k in enumerate(t.kept) if not k]
    assert (cut is None) == (not pruned)
    if cut is not None:
        assert max(pruned) <= cut
        assert all(t.select[i] >= cut for i, k in enumerate(t.kept) if k)


@given(trees())
def test_columns_survive_json(t: DraftTree) -> None:
    data = t.to_dict()
    back = DraftTree.from_dict(json.loads(json.dumps(data, allow_nan=False)))
    assert back.to_dict() == data
    assert list(back.problems()) == []
    assert (back.coverage is None) == (t.coverage is None)


def test_floats_are_rounded_and_what_is_not_finite_becomes_nan() -> None:
    t = tree(target_logp=(0.0, -math.inf, math.nan, -0.123456))
    data = t.to_dict()
    assert data["target_logp"] == [0.0, None, None, -0.1235]
    back = DraftTree.from_dict(data)
    assert back.target_logp is not None
    assert [math.isnan(x) for x in back.target_logp] == [False, True, True, False]


@given(st.lists(st.floats(width=32) | st.floats(-20, 0), max_size=20))
def test_rounded_floats_are_the_nearest_of_four_decimals(column: list[float]) -> None:
    for x, got in zip(column, rounded(column), strict=True):
        if not math.isfinite(x):
            assert got is None
        else:
            assert got is not None
            assert got == round(got, 4)
            assert abs(got - x) <= 0.5e-4 * (1 + 1e-9) + abs(x) * 1e-15


def test_unknown_columns_are_ignored() -> None:
    assert DraftTree.from_dict(tree().to_dict() | {"colour": [1, 2, 3, 4]}) == tree()


def test_views() -> None:
    t = tree()
    assert (len(t), t.num_verified, t.height) == (4, 2, 2)
    assert t.children(0) == [1, 2]
    assert t.path(3) == [0, 1, 3]
    assert t.level(1) == [1, 2]
    assert t.cut() == -1.15
    assert tree(kept=(True,) * 4).cut() is None


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda t: replace(t, token=(1, 2, 3)), "column token has 3 entries for 4|has 4 entries"),
        (lambda t: DraftTree(*[()] * 10), "no root"),
        (lambda t: replace(t, parent=(0, 0, 0, 1)), "node 0 is not a verified root"),
        (lambda t: replace(t, kept=(False, True, False, True)), "node 0 is not a verified root"),
        (lambda t: replace(t, parent=(-1, 0, 0, 3)), "node 3 has parent 3"),
        (lambda t: replace(t, parent=(-1, 0, -1, 1)), "node 2 has parent -1"),
        (lambda t: replace(t, depth=(0, 1, 1, 3)), "depth 3 hangs under depth 1"),
        (lambda t: replace(t, parent=(-1, 0, 0, 2)), "node 3 is kept but its parent 2 is not"),
        (lambda t: replace(t, token=(1, 2, 2, 4)), "node 2 repeats token 2 under parent 0"),
        (
            lambda t: replace(t, state=("hit", "hit", "unreached", "unreached")),
            "unreached with kept=False",
        ),
        (lambda t: replace(t, state=("hit", "pruned", "pruned", "hit")), "pruned with kept=True"),
        (
            lambda t: replace(t, state=("hit", "walked_past", "pruned", "hit")),
            "node 3 is a hit below a node that is not",
        ),
    ],
)
def test_problems_name_the_damage(damage: Callable[[DraftTree], DraftTree], says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        assert not list(damage(tree()).problems())

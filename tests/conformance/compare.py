"""Comparing a round of ours with a recorded one."""

from __future__ import annotations

from typing import Any

import numpy as np

from dartree_core.events import RoundDone
from tests.conformance import recorded


def verified_columns(
    done: RoundDone,
) -> tuple[list[int], list[int], list[int], list[float]]:
    """Tokens, parents (root's first), depths and path scores of the verified nodes, renumbered."""
    tree = done.tree
    ids = [i for i, kept in enumerate(tree.kept) if kept]
    row = {node: i for i, node in enumerate(ids)}
    return (
        [tree.token[i] for i in ids[1:]],
        [-1, *(row[tree.parent[i]] for i in ids[1:])],
        [tree.depth[i] for i in ids[1:]],
        [tree.path_logp[i] for i in ids[1:]],
    )


def assert_same_tree(done: RoundDone, theirs: dict[str, Any]) -> bool:
    """Assert equality as far as the margins allow; True when node order was compared too."""
    margins = theirs["margins"]
    tokens, parents, depths, scores = verified_columns(done)
    if recorded.tied(margins, "level", "candidate", "prune"):
        return False
    if (margins.get("order") or 1.0) < recorded.LOOSE_ORDER:
        ours = recorded.paths(tokens, parents)
        assert ours == recorded.paths(theirs["tokens"], theirs["parents"])
        return False
    assert tokens == theirs["tokens"]
    assert parents == theirs["parents"]
    assert depths == theirs["depths"]
    np.testing.assert_allclose(scores, theirs["path_scores"], atol=recorded.SCORE)
    supertree = theirs.get("supertree")
    if supertree:
        assert list(done.tree.token[1:]) == supertree["tokens"]
        assert list(done.tree.parent) == supertree["parents"]
        assert list(done.tree.depth[1:]) == supertree["depths"]
        np.testing.assert_allclose(
            done.tree.path_logp, supertree["path_scores"], atol=recorded.SCORE
        )
        kept = [i for i, k in enumerate(done.tree.kept) if k]
        assert kept[1:] == [i for i in supertree["kept"] if i]
    return True

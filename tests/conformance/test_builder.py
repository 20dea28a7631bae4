"""Trees as pure functions of recorded marginals: DARTree on a real head, DDTree on raw logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dartree_core.config import TreeConfig
from dartree_core.draft import BUILDERS, BlockDraft, build_dartree
from dartree_core.draft.heads import NoHead
from dartree_core.draft.supertree import Supertree, finish
from dartree_core.draft.vocabulary import DraftVocabulary
from tests.conformance import recorded

DARTREE = [
    pytest.param(path, i, id=f"{path.stem}-{i}")
    for path in recorded.files("builder/trees_pair*.json")
    for i in range(len(recorded.read(path)["records"]))
]
DDTREE = [
    pytest.param(path, i, id=f"{path.stem}-{i}")
    for path in recorded.files("ddtree/trees*.json")
    for i in range(len(recorded.read(path)["records"]))
]


def kept_rows(tree: Supertree) -> tuple[list[int], list[int], list[int], list[float]]:
    row = {int(node): i for i, node in enumerate(tree.kept)}
    kept = tree.kept[1:]
    return (
        tree.token[kept].tolist(),
        [-1, *(row[p] for p in tree.parent[kept].tolist())],
        tree.depth[kept].tolist(),
        tree.path_logp[kept].tolist(),
    )


@pytest.mark.parametrize(("path", "index"), DARTREE)
def test_dartree(path: Any, index: int) -> None:
    data = recorded.read(path)
    record = data["records"][index]
    knobs, case = record["config"], record["case"]
    inputs = np.load(path.parent / f"inputs_pair{data['pair']}.npz")
    drafter = recorded.drafter(data["pair"])
    block = BlockDraft(
        torch.from_numpy(inputs[f"case{case}_parallel_hiddens"]),
        torch.from_numpy(inputs[f"case{case}_base_logits"]),
        drafter.vocabulary,
    )
    shared = drafter.head.prepare(block.hidden)
    np.testing.assert_allclose(shared, inputs[f"case{case}_z_parts"], atol=1e-4)
    tree = build_dartree(
        block,
        drafter.head,
        torch.tensor([record["root"]]),
        drafter.target.embed,
        budget=knobs["tree_budget"],
        width=knobs["supertree_width"],
        candidates=knobs["candidate_vocab_size"],
        expansion_k=knobs["expansion_k"],
        depth_bonus=knobs["depth_bonus"],
        variant=knobs["variant"],
    )
    margins = record["margins"]
    if recorded.tied(margins, "level", "candidate", "prune"):
        pytest.skip("a margin is within rounding")
    tokens, parents, depths, scores = kept_rows(tree)
    if (margins.get("order") or 1.0) < recorded.LOOSE_ORDER:
        expected = recorded.paths(record["tokens"], record["parents"])
        assert recorded.paths(tokens, parents) == expected
        return
    assert (tokens, parents, depths) == (record["tokens"], record["parents"], record["depths"])
    np.testing.assert_allclose(scores, record["path_scores"], atol=recorded.SCORE)
    if record.get("kept") is not None:
        assert [i for i in tree.kept.tolist() if i] == [i for i in record["kept"] if i]
    supertree = record.get("supertree")
    if supertree:
        assert tree.token[1:].tolist() == supertree["tokens"]
        assert tree.parent.tolist() == supertree["parents"]
        theirs = supertree["path_scores"]
        np.testing.assert_allclose(tree.path_logp[-len(theirs) :], theirs, atol=recorded.SCORE)


@pytest.mark.parametrize(("path", "index"), DDTREE)
def test_ddtree(path: Any, index: int) -> None:
    record = recorded.read(path)["records"][index]
    inputs = np.load(path.parent / path.name.replace("trees", "inputs").replace("json", "npz"))
    logits = torch.from_numpy(inputs[f"case{record['case']}_logits"])
    block = BlockDraft(torch.zeros(len(logits), 1), logits, DraftVocabulary(logits.shape[1]))
    steps = BUILDERS["ddtree"](
        block,
        NoHead(),
        torch.tensor([0]),
        lambda tokens: torch.zeros(len(tokens), 1),
        TreeConfig(budget=record["budget"]),
        len(logits),
    )
    tokens, parents, depths, scores = kept_rows(finish(steps))
    gap = record.get("order_gap")
    if gap is not None and gap < recorded.TIE:
        assert recorded.paths(tokens, parents) == recorded.paths(
            record["tokens"], record["parents"]
        )
        return
    assert (tokens, parents, depths) == (record["tokens"], record["parents"], record["depths"])
    np.testing.assert_allclose(scores, record["path_scores"], atol=recorded.SCORE)

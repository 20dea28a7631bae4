"""From device tensors to the `DraftTree` that readers see: columns, states and fates."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dartree_core.draft.supertree import Supertree
from dartree_core.engine.verify import Verdict, VerifyPlan
from dartree_core.tree import BonusFate, DraftTree, State


def describe_tree(
    tree: Supertree, plan: VerifyPlan, verdict: Verdict, logits: Tensor | None
) -> tuple[DraftTree, list[int]]:
    """The round's tree with every node's fate.

    Args:
        tree: What the builder made.
        plan: The rows that were verified.
        verdict: The walk's outcome.
        logits: float32 `[n + 1, V]` for full detail, None for basic.

    Returns:
        The tree, and the accepted path as node ids.
    """
    ints = torch.stack((tree.token, tree.parent, tree.depth, tree.draft_rank, tree.head_rank))
    floats = torch.stack((tree.draft_logp, tree.head_logp, tree.path_logp, tree.select))
    token, parent, depth, draft_rank, head_rank = ints.tolist()
    draft_logp, head_logp, path_logp, select = floats.tolist()
    kept_ids: list[int] = tree.kept.tolist()
    accepted = [kept_ids[row] for row in verdict.accepted]
    kept = [False] * len(token)
    for i in kept_ids:
        kept[i] = True
    full: dict[str, Any] = {}
    if logits is not None:
        full = {"draft_rank": draft_rank, "head_rank": head_rank}
        full |= _target_columns(kept_ids, plan, logits, len(token))
    return (
        DraftTree(
            token=token,
            parent=parent,
            depth=depth,
            slot=[d - 1 for d in depth],
            draft_logp=draft_logp,
            head_logp=head_logp,
            path_logp=path_logp,
            select=select,
            kept=kept,
            state=_states(parent, kept, set(accepted)),
            **full,
        ),
        accepted,
    )


def _states(parent: list[int], kept: list[bool], hits: set[int]) -> list[State]:
    out: list[State] = []
    for i, p in enumerate(parent):
        if not kept[i]:
            out.append("pruned")
        elif i in hits:
            out.append("hit")
        else:
            out.append("walked_past" if p in hits else "unreached")
    return out


def target_logps(plan: VerifyPlan, logits: Tensor) -> Tensor:
    """Log-probability of every row given its path, float32 `[n + 1]`, 0 for the root."""
    parents, token = plan.parent.clamp(min=0), plan.token
    # Most rows are leaves, which score nobody.
    if logits.device.type == "cpu":
        scored = {row: logits[row].log_softmax(dim=-1).numpy() for row in set(parents.tolist())}
        pairs = zip(parents.tolist(), token.tolist(), strict=True)
        own = torch.tensor([float(scored[row][i]) for row, i in pairs])
    else:
        rows, place = torch.unique(parents, return_inverse=True)
        norm = logits[rows.to(logits.device)].logsumexp(dim=-1)[place.to(logits.device)]
        own = logits[parents.to(logits.device), token.to(logits.device)] - norm
    own[0] = 0.0
    return own


def _ranks(plan: VerifyPlan, logits: Tensor) -> Tensor:
    """Rank of every row's token, from 1, in the logits of the row before it: int64 `[n + 1]`."""
    parents, token = plan.parent.clamp(min=0), plan.token
    if logits.device.type != "cpu":
        parents, token = parents.to(logits.device), token.to(logits.device)
        own = logits[parents, token]
        return (logits[parents] > own[:, None]).sum(-1) + 1
    # NumPy compares and counts a row seven times as fast as PyTorch does.
    rows = logits.numpy()
    pairs = zip(parents.tolist(), token.tolist(), strict=True)
    above = [np.count_nonzero(rows[row] > rows[row, i]) for row, i in pairs]
    return torch.tensor(above) + 1


def _target_columns(
    kept_ids: list[int], plan: VerifyPlan, logits: Tensor, nodes: int
) -> dict[str, Any]:
    logp = target_logps(plan, logits)
    rank = _ranks(plan, logits)
    parents = plan.parent.clamp(min=0).to(logits.device)
    coverage = torch.zeros_like(logp).index_add_(0, parents[1:], logp[1:].exp())
    columns: dict[str, list[Any]] = {
        "target_logp": [float("nan")] * nodes,
        "target_rank": [0] * nodes,
        "coverage": [float("nan")] * nodes,
    }
    per_row = (logp.tolist(), rank.tolist(), coverage.tolist())
    for node, row_logp, row_rank, row_coverage in zip(kept_ids, *per_row, strict=True):
        columns["target_logp"][node] = row_logp
        columns["target_rank"][node] = row_rank if node else 0
        columns["coverage"][node] = row_coverage
    return columns


def bonus_fate(tree: Supertree, described: DraftTree, last: int, bonus: int) -> BonusFate:
    """Why the tree had no verified node for the bonus token under accepted node `last`."""
    for i in described.children(last):
        if described.token[i] == bonus:
            return "final_pruned"
    slot = described.depth[last]
    # Only a builder ranks nodes, and only what a builder made was expanded.
    copied = last > 0 and not int(tree.draft_rank[last])
    if copied or slot >= len(tree.candidates):
        return "not_expanded"
    if bool((tree.candidates[slot] == bonus).any()):
        return "level_pruned"
    return "not_proposed"

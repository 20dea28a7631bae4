"""From device tensors to the `DraftTree` that readers see: columns, states and fates."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from dartree_core import compiled
from dartree_core.draft.supertree import Supertree
from dartree_core.engine.verify import Verdict, VerifyPlan
from dartree_core.tree import BonusFate, DraftTree, State

Targets: TypeAlias = tuple[list[float], list[int]]
"""Per verified row the target's log-probability and rank, see `read_targets`."""


def describe_tree(
    tree: Supertree, plan: VerifyPlan, verdict: Verdict, targets: Targets | None
) -> tuple[DraftTree, list[int]]:
    """The round's tree with every node's fate.

    Args:
        tree: What the builder made.
        plan: The rows that were verified.
        verdict: The walk's outcome.
        targets: What `read_targets` found, for full detail; None for basic.

    Returns:
        The tree, and the accepted path as node ids.
    """
    if not tree.num_nodes:
        return _bare(int(tree.token), full=targets is not None), [0]
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
    if targets is not None:
        full = {"draft_rank": draft_rank, "head_rank": head_rank}
        full |= _target_columns(kept_ids, plan, targets, len(token))
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


def _bare(token: int, *, full: bool) -> DraftTree:
    """A root alone, without the operations that describe a tree: there is one for every token
    that is decoded plainly."""
    zeros = ([0.0],) * 4
    columns: dict[str, Any] = {}
    if full:
        columns = {name: [0] for name in ("draft_rank", "head_rank", "target_rank")}
        columns |= {name: [0.0] for name in ("target_logp", "coverage")}
    return DraftTree([token], [-1], [0], [-1], *zeros, kept=[True], state=["hit"], **columns)


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


def read_targets(plan: VerifyPlan, logits: Tensor) -> Targets:
    """Every row's log-probability given its path, and its rank among all tokens there from 1;
    0 for the root. Logits are float32 `[n + 1, V]`."""
    if len(plan.token) == 1:
        return [0.0], [0]
    if logits.device.type == "cpu":
        loops = compiled.loaded()
        if loops is not None:
            size = len(plan.token)
            logp, rank = np.empty(size, np.float32), np.empty(size, np.int64)
            rows = np.ascontiguousarray(logits.numpy())
            parent, token = plan.parent.numpy(), plan.token.numpy()
            loops.read_targets(rows, parent, token, logp, rank, torch.get_num_threads())
            return logp.tolist(), rank.tolist()
    parents, tokens = (x.to(logits.device) for x in (plan.parent.clamp(min=0), plan.token))
    own = logits[parents, tokens]
    # Most rows are leaves, which score nobody.
    rows, place = torch.unique(parents, return_inverse=True)
    logps = own - logits[rows].logsumexp(dim=-1)[place]
    ranks = (logits[parents] > own[:, None]).sum(-1) + 1
    logps[0], ranks[0] = 0.0, 0
    return logps.tolist(), ranks.tolist()


def _target_columns(
    kept_ids: list[int], plan: VerifyPlan, targets: Targets, nodes: int
) -> dict[str, Any]:
    logps, ranks = targets
    columns: dict[str, list[Any]] = {
        "target_logp": [float("nan")] * nodes,
        "target_rank": [0] * nodes,
        "coverage": [float("nan")] * nodes,
    }
    coverage = [0.0] * len(logps)
    for row, parent in enumerate(plan.parent.tolist()[1:], start=1):
        coverage[parent] += math.exp(logps[row])
    for node, *values in zip(kept_ids, logps, ranks, coverage, strict=True):
        for name, value in zip(columns, values, strict=True):
            columns[name][node] = value
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

"""DDTree: best-first search over the product of the marginals, no correction head.

Semantics as recorded in the conformance set: full-vocabulary log-softmax, the `min(B, V)` likeliest
tokens per depth, a heap over prefixes, ties by lexicographic rank tuple.
"""

from __future__ import annotations

import heapq
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from dartree_core.config import TreeConfig
from dartree_core.draft.builders.base import Embed, Steps
from dartree_core.draft.drafter import BlockDraft
from dartree_core.draft.heads import CorrectionHead
from dartree_core.draft.supertree import Level, Supertree


def ddtree(
    block: BlockDraft,
    head: CorrectionHead,
    root: Tensor,
    embed: Embed,
    tree: TreeConfig,
    max_depth: int,
    enough: int | None = None,
) -> Steps:
    """Builder: the `budget` likeliest prefixes under independent marginals.

    Nodes are numbered in the order the heap gives them, so levels interleave; they are still
    yielded depth by depth, once the search is over.
    """
    logits = block.base_logits[:max_depth]
    top = torch.log_softmax(logits, dim=-1).topk(min(tree.limit, logits.shape[1]), dim=-1)
    scores: list[list[float]] = top.values.tolist()
    found = _best_first(scores, tree.limit)
    device = root.device
    depth = torch.tensor([len(ranks) for _, ranks, _ in found], device=device)
    rank = torch.tensor([ranks[-1] for _, ranks, _ in found], device=device)
    parent = torch.tensor([p for _, _, p in found], device=device)
    path = torch.tensor([score for score, _, _ in found], device=device)
    logp = top.values[depth - 1, rank]
    token = block.vocabulary.to_target(top.indices[depth - 1, rank])
    zero, one = root.new_zeros(1), torch.zeros(1, device=device)
    ranks = torch.cat((zero, rank + 1))
    logps = torch.cat((one, logp))
    deepest = max(len(ranks_of_path) for _, ranks_of_path, _ in found)
    grown = Supertree(
        token=torch.cat((root, token)),
        parent=torch.cat((zero - 1, parent)),
        depth=torch.cat((zero, depth)),
        draft_logp=logps,
        head_logp=logps,
        path_logp=torch.cat((one, path)),
        draft_rank=ranks,
        head_rank=ranks,
        kept=torch.arange(len(found) + 1, device=device),
        candidates=list(block.vocabulary.to_target(top.indices[:deepest])),
    )
    for level in range(1, deepest + 1):
        yield partial(_level, grown, level, logits.shape[1])
    return grown


def _best_first(scores: list[list[float]], budget: int) -> list[tuple[float, tuple[int, ...], int]]:
    """The best prefixes as (path score, rank per depth, parent node id), in popping order."""
    heap: list[tuple[float, tuple[int, ...], int]] = [(-scores[0][0], (0,), 0)]
    found: list[tuple[float, tuple[int, ...], int]] = []
    while heap and len(found) < budget:
        cost, ranks, parent = heapq.heappop(heap)
        found.append((-cost, ranks, parent))
        slot, rank = len(ranks) - 1, ranks[-1]
        if rank + 1 < len(scores[slot]):
            sibling = cost + scores[slot][rank] - scores[slot][rank + 1]
            heapq.heappush(heap, (sibling, (*ranks[:-1], rank + 1), parent))
        if slot + 1 < len(scores):
            heapq.heappush(heap, (cost - scores[slot + 1][0], (*ranks, 0), len(found)))
    return found


def _level(tree: Supertree, depth: int, vocab: int) -> Level:
    level = tree.level(depth, 0)
    return replace(level, considered=len(set(level.parent.tolist())) * vocab)

"""Chains: the linear methods the trees are compared with."""

from __future__ import annotations

import torch
from torch import Tensor

from dartree_core.config import TreeConfig
from dartree_core.draft.builders.base import Embed, Steps
from dartree_core.draft.drafter import BlockDraft
from dartree_core.draft.heads import CorrectionHead
from dartree_core.draft.supertree import Level, Supertree


def dflash(
    block: BlockDraft,
    head: CorrectionHead,
    root: Tensor,
    embed: Embed,
    tree: TreeConfig,
    max_depth: int,
) -> Steps:
    """Builder: the likeliest token of every slot, uncorrected (arXiv 2602.06036)."""
    logp, rows = torch.log_softmax(block.base_logits[:max_depth], dim=-1).max(dim=-1)
    token = block.vocabulary.to_target(rows)
    path = logp.cumsum(0)
    one = torch.ones_like(rows[:1])
    levels = []
    for i in range(max_depth):
        at = slice(i, i + 1)
        level = _link(
            i, token[at], logp[at], logp[at], path[at], one, one, block.base_logits.shape[1]
        )
        levels.append(level)
        yield level
    return Supertree.from_levels(root, levels, list(token[:, None]))


def domino(
    block: BlockDraft,
    head: CorrectionHead,
    root: Tensor,
    embed: Embed,
    tree: TreeConfig,
    max_depth: int,
) -> Steps:
    """Builder: slot by slot the likeliest token given the chain so far (arXiv 2605.29707).

    Corrected over the whole vocabulary; the head's first `prefix_len` slots stay uncorrected.
    """
    base = block.base_logits[:max_depth]
    shared = head.prepare(block.hidden[:max_depth])
    marginal = torch.log_softmax(base, dim=-1)
    states = head.root_state(root, embed(root))
    path = torch.zeros(1, device=root.device)
    levels = []
    for i in range(max_depth):
        logp = marginal[i : i + 1]
        if i >= head.prefix_len:
            correction = _whole(head.correct(shared[i], states, None), base.shape[1])
            corrected = base[i] + block.scale * correction
            logp = torch.log_softmax(corrected, dim=-1)
        best, row = logp.max(dim=-1)
        token = block.vocabulary.to_target(row)
        own = marginal[i, row]
        rank = (marginal[i] > own).sum()[None] + 1
        path = path + best
        level = _link(i, token, own, best, path, rank, torch.ones_like(rank), base.shape[1])
        levels.append(level)
        yield level
        if i + 1 < max_depth:
            states = head.advance(states, token, embed(token))
    return Supertree.from_levels(root, levels, [level.token for level in levels])


def _whole(correction: Tensor, size: int) -> Tensor:
    """Corrections for exactly `size` rows; a head may be padded past the target's table."""
    return correction.float() if correction.shape[1] == 1 else correction[:, :size].float()


def _link(
    index: int,
    token: Tensor,
    draft_logp: Tensor,
    head_logp: Tensor,
    path: Tensor,
    draft_rank: Tensor,
    head_rank: Tensor,
    considered: int,
) -> Level:
    node = torch.full_like(token, index + 1)
    return Level(
        depth=index + 1,
        considered=considered,
        node=node,
        token=token,
        parent=node - 1,
        draft_logp=draft_logp,
        head_logp=head_logp,
        path_logp=path,
        draft_rank=draft_rank,
        head_rank=head_rank,
    )

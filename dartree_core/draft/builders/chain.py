"""Chains: the linear methods the trees are compared with."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from dartree_core.config import TreeConfig
from dartree_core.draft.builders.base import Embed, Steps
from dartree_core.draft.confidence import PathConfidence
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
    enough: int | None = None,
) -> Steps:
    """Builder: the likeliest token of every slot, uncorrected (arXiv 2602.06036)."""
    logp, rows = torch.log_softmax(block.base_logits[:max_depth], dim=-1).max(dim=-1)
    token, path, first = block.vocabulary.to_target(rows), logp.cumsum(0), torch.ones_like(rows)
    chain = _chain(root, token, logp, logp, path, first, first)
    for depth in range(1, max_depth + 1):
        yield partial(chain.level, depth, block.base_logits.shape[1])
    return chain


def domino(
    block: BlockDraft,
    head: CorrectionHead,
    root: Tensor,
    embed: Embed,
    tree: TreeConfig,
    max_depth: int,
    enough: int | None = None,
) -> Steps:
    """Builder: slot by slot the likeliest token given the chain so far (arXiv 2605.29707).

    Corrected over the whole vocabulary, or over the likeliest tokens where the head knows no
    others; its first `prefix_len` slots stay uncorrected.
    """
    base = block.base_logits[:max_depth]
    shared = head.prepare(block.hidden[:max_depth])
    marginal = torch.log_softmax(base, dim=-1)
    states = head.root_state(root, embed(root))
    path = torch.zeros(1, device=root.device)
    sure, only = PathConfidence(head, root.device), root.new_zeros(1)
    links: list[tuple[Tensor, ...]] = []
    for i in range(max_depth):
        logp = marginal[i : i + 1]
        if i >= head.prefix_len:
            correction = _whole(head.correct(shared[i], states, None), base.shape[1])
            corrected = base[i] + block.scale * correction
            if head.max_candidates is not None:
                corrected = _among(corrected, base[i], head.max_candidates)
            logp = torch.log_softmax(corrected, dim=-1)
        best, row = logp.max(dim=-1)
        token = block.vocabulary.to_target(row)
        own = marginal[i, row]
        rank = (marginal[i] > own).sum()[None] + 1
        path = path + best
        links.append((token, own, best, path, rank, torch.ones_like(rank)))
        sure.extend(shared[i], states, only)
        yield partial(_last, root, links[:], base.shape[1])
        if i + 1 < max_depth:
            states = head.follow(states, token, embed, shared[i])
    grown = _join(root, links)
    grown.confidence = sure.column
    return grown


def _whole(correction: Tensor, size: int) -> Tensor:
    """Corrections for exactly `size` rows; a head may be padded past the target's table."""
    return correction.float() if correction.shape[1] == 1 else correction[:, :size].float()


def _among(corrected: Tensor, base: Tensor, most: int) -> Tensor:
    """`corrected` `[1, Vd]` for the `most` likeliest tokens by `base` `[Vd]`, -inf for others."""
    listed = base.topk(min(most, len(base))).indices
    out = torch.full_like(corrected, float("-inf"))
    return out.index_copy_(1, listed, corrected.index_select(1, listed))


def _last(root: Tensor, links: list[tuple[Tensor, ...]], considered: int) -> Level:
    return _join(root, links).level(len(links), considered)


def _join(root: Tensor, links: list[tuple[Tensor, ...]]) -> Supertree:
    return _chain(root, *(torch.cat(column) for column in zip(*links, strict=True)))


def _chain(
    root: Tensor,
    token: Tensor,
    draft_logp: Tensor,
    head_logp: Tensor,
    path_logp: Tensor,
    draft_rank: Tensor,
    head_rank: Tensor,
) -> Supertree:
    """A chain of nodes, their columns `[N]`, under a root `[1]`."""
    node = torch.arange(len(token) + 1, device=root.device)
    zero, one = root.new_zeros(1), torch.zeros(1, device=root.device)
    return Supertree(
        token=torch.cat((root, token)),
        parent=node - 1,
        depth=node,
        draft_logp=torch.cat((one, draft_logp)),
        head_logp=torch.cat((one, head_logp)),
        path_logp=torch.cat((one, path_logp)),
        draft_rank=torch.cat((zero, draft_rank)),
        head_rank=torch.cat((zero, head_rank)),
        kept=node,
        candidates=list(token[:, None]),
    )

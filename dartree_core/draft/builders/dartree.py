"""DARTree: a supertree scored by the correction head, one batch per depth, pruned afterwards.

arXiv 2608.13524, section 3.2. At each depth the whole frontier is expanded and scored together,
and the best (parent, child) pairs by path score become the next frontier. No heap sits between
the head's calls, so the head runs `depth` times whatever the number of nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dartree_core.config import TreeConfig
from dartree_core.draft.builders.base import Embed, Steps
from dartree_core.draft.drafter import BlockDraft
from dartree_core.draft.heads import CorrectionHead
from dartree_core.draft.supertree import Level, Supertree, finish


def build_dartree(
    block: BlockDraft,
    head: CorrectionHead,
    root: Tensor,
    embed: Embed,
    *,
    budget: int = 64,
    width: int = 12,
    candidates: int = 64,
    expansion_k: int = 64,
    depth_bonus: float = -0.2,
    variant: Literal["pruned", "fixed"] = "pruned",
    max_depth: int | None = None,
) -> Supertree:
    """Build one round's draft tree.

    Args:
        block: Marginals of one drafter pass, K slots.
        head: Re-scores candidates given a path.
        root: int64 `[1]`, the last committed token.
        embed: The target's embedding, ids `[n]` to `[n, H]`.
        budget: B, most nodes to verify.
        width: W, nodes kept per depth before pruning (`pruned`).
        candidates: Tokens per slot that the head may choose from.
        expansion_k: Most children of one parent.
        depth_bonus: beta, added per depth to the pruning key (`pruned`).
        variant: `pruned` grows W wide, then keeps the best B overall; `fixed` spends exactly B
            over the depths and prunes nothing.
        max_depth: Stop earlier than the block ends.

    Returns:
        The supertree; `kept` names the nodes to verify, closed under "parent of".

    Raises:
        ConfigError: A setting is out of range.
    """
    tree = TreeConfig(
        budget=budget,
        width=width,
        candidates=candidates,
        expansion_k=expansion_k,
        depth_bonus=depth_bonus,
    )
    builder = pruned if variant == "pruned" else fixed
    depth = block.num_slots if max_depth is None else min(max_depth, block.num_slots)
    return finish(builder(block, head, root, embed, tree, depth))


def pruned(
    block: BlockDraft,
    head: CorrectionHead,
    root: Tensor,
    embed: Embed,
    tree: TreeConfig,
    max_depth: int,
) -> Steps:
    """Builder: W nodes at every depth, then the best `budget` of the supertree."""
    width = min(tree.width, _expansion(block, tree))
    grown = yield from _grow(block, head, root, embed, tree, max_depth, lambda depth, nodes: width)
    grown.depth_bonus = tree.depth_bonus
    grown.prune(tree.limit)
    return grown


def fixed(
    block: BlockDraft,
    head: CorrectionHead,
    root: Tensor,
    embed: Embed,
    tree: TreeConfig,
    max_depth: int,
) -> Steps:
    """Builder: `budget` nodes spread evenly over the depths, all verified."""

    def share(depth: int, nodes: int) -> int:
        return -(-(tree.limit - nodes) // (max_depth - depth))

    return (yield from _grow(block, head, root, embed, tree, max_depth, share))


def _expansion(block: BlockDraft, tree: TreeConfig) -> int:
    """E, most children of one parent; the budget caps branching too."""
    return min(tree.expansion_k, block.base_logits.shape[1], tree.limit)


def _grow(
    block: BlockDraft,
    head: CorrectionHead,
    root: Tensor,
    embed: Embed,
    tree: TreeConfig,
    max_depth: int,
    quota: Callable[[int, int], int],
) -> Steps:
    """Expand the frontier depth by depth.

    `quota(depth, nodes)` says how many nodes the next level may have, given the levels and
    nodes so far; 0 ends the tree.
    """
    branch = _expansion(block, tree)
    slots = _Slots.of(block, head, tree, branch, max_depth)
    states = head.root_state(root, embed(root))
    frontier, path = root.new_zeros(1), torch.zeros(1, device=root.device)
    levels: list[Level] = []
    nodes = 0
    for depth in range(max_depth):
        count = min(quota(depth, nodes), len(path) * branch)
        if count <= 0:
            break
        logp = slots.score(head, depth, states)
        path, parent, child = _select(path, logp, count, branch)
        of_parent = logp[parent] if len(logp) > 1 else logp.expand(count, -1)
        head_logp = of_parent.gather(1, child[:, None])
        token = slots.tokens[depth][child]
        level = Level(
            depth=depth + 1,
            considered=len(frontier) * logp.shape[1],
            node=torch.arange(nodes + 1, nodes + count + 1, device=root.device),
            token=token,
            parent=frontier[parent],
            draft_logp=slots.logp[depth][child],
            head_logp=head_logp[:, 0],
            path_logp=path,
            draft_rank=child + 1,
            head_rank=(of_parent > head_logp).sum(-1) + 1,
        )
        levels.append(level)
        yield level
        frontier, nodes = level.node, nodes + count
        if depth + 1 < max_depth:
            states = head.advance(states[parent], token, embed(token))
    return Supertree.from_levels(root, levels, slots.tokens[: len(levels)])


def _select(path: Tensor, logp: Tensor, count: int, branch: int) -> tuple[Tensor, Tensor, Tensor]:
    """The best (parent, child) pairs by path score, in descending order.

    Args:
        path: `[F]` scores of the frontier.
        logp: `[F, C]`, or `[1, C]` when all parents share it.
        count: Pairs wanted.
        branch: Most children of one parent.

    Returns:
        Path scores, frontier rows and candidate columns, `[count]` each.
    """
    columns = None
    if branch < min(count, logp.shape[1]):
        logp, columns = logp.topk(branch, dim=-1)
        columns = columns.expand(len(path), -1)
    total = path[:, None] + logp
    best, flat = total.flatten().topk(count)
    parent, child = flat // total.shape[1], flat % total.shape[1]
    if columns is not None:
        child = columns[parent, child]
    return best, parent, child


@dataclass(slots=True)
class _Slots:
    """Per slot, the tokens that may be proposed and what all parents of a depth share.

    `rows[i]` are vocabulary rows in descending order of base logit, `tokens[i]` their target ids,
    `base[i]` their logits, and `logp[i]` their marginal log-probabilities: within the candidate
    set for corrected slots, over the whole vocabulary for uncorrected ones.
    """

    rows: list[Tensor]
    tokens: list[Tensor]
    base: list[Tensor]
    logp: list[Tensor]
    shared: Tensor
    prefix_len: int
    scale: float

    @classmethod
    def of(
        cls, block: BlockDraft, head: CorrectionHead, tree: TreeConfig, branch: int, depths: int
    ) -> _Slots:
        logits = block.base_logits[:depths]
        size = min(logits.shape[1], max(tree.expansion_k, tree.candidates))
        top = logits.topk(size, dim=-1)
        rows, base = list(top.indices), list(top.values)
        tokens = list(block.vocabulary.to_target(top.indices))
        logp = list(torch.log_softmax(top.values, dim=-1))
        for i in range(min(head.prefix_len, depths)):
            rows[i], tokens[i] = rows[i][:branch], tokens[i][:branch]
            logp[i] = torch.log_softmax(logits[i], dim=-1)[rows[i]].clamp(max=0)
        shared = head.prepare(block.hidden[:depths])
        return cls(rows, tokens, base, logp, shared, head.prefix_len, block.scale)

    def score(self, head: CorrectionHead, slot: int, states: Tensor) -> Tensor:
        """Log-probabilities `[F, C]` of a slot's candidates given parents' states, or `[1, C]`
        where the slot stays uncorrected.

        Corrected scores are normalised over the candidate set. Log-softmax may round to just
        above 0 for a near-certain token, which would let a child's key pass its parent's.
        """
        if slot < self.prefix_len:
            return self.logp[slot][None]
        correction = head.correct(self.shared[slot], states, self.rows[slot]).float()
        corrected = torch.add(self.base[slot], correction, alpha=self.scale)
        return torch.log_softmax(corrected, dim=-1).clamp_(max=0)

"""DARTree: a supertree scored by the correction head, one batch per depth, pruned afterwards.

arXiv 2608.13524, section 3.2. At each depth the whole frontier is expanded and scored together,
and the best (parent, child) pairs by path score become the next frontier. No heap sits between
the head's calls, so the head runs `depth` times whatever the number of nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dartree_core.config import Method, TreeConfig
from dartree_core.draft.builders.base import Embed, Steps
from dartree_core.draft.confidence import PathConfidence
from dartree_core.draft.drafter import BlockDraft
from dartree_core.draft.heads import CorrectionHead
from dartree_core.draft.supertree import Level, Supertree, finish

METHODS: frozenset[Method] = frozenset({"dartree", "dartree-fixed"})
"""What is built here: children of a whole frontier compete with one another."""


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
    enough: int | None = None,
) -> Steps:
    """Builder: W nodes at every depth, then the best `budget` of the supertree."""
    width = min(tree.width, expansion(block, head, tree))
    ample = None
    if enough is not None:
        ample = _Ample(min(enough, tree.limit), tree.depth_bonus)
        # Whoever has as many betters on its own level is not among the best, nor is what follows.
        width = min(width, ample.enough)
    grown = yield from _grow(
        block, head, root, embed, tree, max_depth, lambda depth, nodes: width, ample
    )
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
    enough: int | None = None,
) -> Steps:
    """Builder: `budget` nodes spread evenly over the depths, all verified."""

    def share(depth: int, nodes: int) -> int:
        return -(-(tree.limit - nodes) // (max_depth - depth))

    return (yield from _grow(block, head, root, embed, tree, max_depth, share))


def expansion(block: BlockDraft, head: CorrectionHead, tree: TreeConfig) -> int:
    """E, most children of one parent; the budget caps branching too."""
    known = block.base_logits.shape[1]
    return min(tree.expansion_k, known, tree.limit, head.max_candidates or known)


def _grow(
    block: BlockDraft,
    head: CorrectionHead,
    root: Tensor,
    embed: Embed,
    tree: TreeConfig,
    max_depth: int,
    quota: Callable[[int, int], int],
    ample: _Ample | None = None,
) -> Steps:
    """Expand the frontier depth by depth.

    `quota(depth, nodes)` says how many nodes the next level may have, given the levels and
    nodes so far; 0 ends the tree, and so does `ample` when nothing deeper matters. Only what
    selects nodes happens here; `_join` works out their columns for all levels together.
    """
    branch = expansion(block, head, tree)
    slots = _Slots.of(block, head, tree, branch, max_depth)
    states = head.root_state(root, embed(root))
    path = torch.zeros(1, device=root.device)
    sure = PathConfidence(head, root.device)
    picks: list[_Pick] = []
    nodes = 0
    for depth in range(max_depth):
        count = min(quota(depth, nodes), len(path) * branch)
        if count <= 0:
            break
        logp = slots.score(head, depth, states)
        path, parent, child = _select(path, logp, count, branch)
        token = slots.tokens[depth].index_select(0, child)
        picks.append(_Pick(logp, parent, child, token, path))
        sure.extend(slots.shared[depth], states, parent)
        yield partial(_last, root, slots, picks[:])
        nodes += count
        if ample is not None:
            # Best first, so those from which anything can come lead the level.
            alive = ample.after(path)
            if not alive:
                break
            path, parent, token = path[:alive], parent[:alive], token[:alive]
        if depth + 1 < max_depth:
            states = head.follow(states.index_select(0, parent), token, embed, slots.shared[depth])
    grown = _join(root, slots, picks)
    grown.confidence = sure.column
    return grown


class _Ample:
    """Tells below which nodes none can be among the best.

    Path scores do not rise along a path, so with `depth_bonus <= 0` no key below a node exceeds
    the node's.

    Args:
        enough: Nodes wanted.
        depth_bonus: Of the pruning keys.
    """

    def __init__(self, enough: int, depth_bonus: float) -> None:
        self.enough = enough
        self._bonus = np.float32(depth_bonus)
        self._depth = 0
        self._best = np.empty(0, np.float32)

    def after(self, path: Tensor) -> int:
        """A level was selected, with path scores `[q]` on the host, in descending order: how many
        of its nodes may have descendants among the best."""
        self._depth += 1
        keys = path.numpy() + self._bonus * np.float32(self._depth)
        best = np.concatenate((self._best, keys))
        best.sort()
        self._best = best = best[-self.enough :]
        if len(best) < self.enough:
            return len(keys)
        # NaN compares false: what overflowed is grown to its end.
        return len(keys) - int(np.count_nonzero(keys <= best[0]))


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

    Attributes:
        rows: int64, vocabulary rows `[C]` in descending order of base logit, a slot each.
        tokens: Their target ids, a slot each.
        base: float32, a slot's base logits `[C]` each.
        logp: float32 `[K, C]`, their marginal log-probabilities: within the candidate set for
            corrected slots, over the whole vocabulary for uncorrected ones.
        shared: What the head prepared, a slot each.
        prefix_len: First slots that stay uncorrected.
        branch: Most children of one parent; uncorrected slots have no more candidates.
        scale: Of corrections.
    """

    rows: tuple[Tensor, ...]
    tokens: tuple[Tensor, ...]
    base: tuple[Tensor, ...]
    logp: Tensor
    shared: tuple[Tensor, ...]
    prefix_len: int
    branch: int
    scale: float | Tensor

    @classmethod
    def of(
        cls, block: BlockDraft, head: CorrectionHead, tree: TreeConfig, branch: int, depths: int
    ) -> _Slots:
        logits = block.base_logits[:depths]
        known = logits.shape[1]
        size = min(known, max(tree.expansion_k, tree.candidates), head.max_candidates or known)
        base, rows = logits.topk(size, dim=-1)
        logp = torch.log_softmax(base, dim=-1)
        if head.prefix_len:
            first = slice(head.prefix_len)
            whole = torch.log_softmax(logits[first], dim=-1)
            logp[first] = whole.gather(1, rows[first]).clamp_(max=0)
        tokens = block.vocabulary.to_target(rows).unbind()
        shared = head.prepare(block.hidden[:depths]).unbind()
        return cls(
            rows.unbind(),
            tokens,
            base.unbind(),
            logp,
            shared,
            head.prefix_len,
            branch,
            block.scale,
        )

    def score(self, head: CorrectionHead, slot: int, states: Tensor) -> Tensor:
        """Log-probabilities `[F, C]` of a slot's candidates given parents' states, or
        `[1, branch]` where the slot stays uncorrected.

        Corrected scores are normalised over the candidate set. Log-softmax may round to just
        above 0 for a near-certain token, which would let a child's key pass its parent's.
        """
        if slot < self.prefix_len:
            return self.logp[slot : slot + 1, : self.branch]
        correction = head.correct(self.shared[slot], states, self.rows[slot]).float()
        if isinstance(self.scale, Tensor):
            correction = self.scale * correction
            corrected = self.base[slot] + correction
        else:
            corrected = torch.add(self.base[slot], correction, alpha=self.scale)
        return torch.log_softmax(corrected, dim=-1).clamp_(max=0)

    def rows_of(self, pick: _Pick, frontier: int) -> Tensor:
        """A pick's scores with a row for each of `frontier` nodes above, whether it was expanded
        or not, and all candidates' columns."""
        scores = pick.logp.expand(frontier, -1) if len(pick.logp) == 1 else pick.logp
        missing = (len(self.rows[0]) - scores.shape[1], frontier - len(scores))
        if not any(missing):
            return scores
        return F.pad(scores, (0, missing[0], 0, missing[1]), value=float("-inf"))

    def candidates(self, depths: int) -> list[Tensor]:
        """Target ids that could be proposed at the first `depths` slots."""
        return [
            ids[: self.branch] if i < self.prefix_len else ids
            for i, ids in enumerate(self.tokens[:depths])
        ]


class _Pick(NamedTuple):
    """What one depth selected.

    Attributes:
        logp: float32 `[F, C]`, scores of the frontier's candidates, or `[1, C]` for all of it;
            the frontier are the first nodes of the level above, mostly all.
        parent: int64 `[q]`, rows of the frontier.
        child: int64 `[q]`, columns of the candidates.
        token: int64 `[q]`, target ids.
        path: float32 `[q]`, path scores.
    """

    logp: Tensor
    parent: Tensor
    child: Tensor
    token: Tensor
    path: Tensor


def _last(root: Tensor, slots: _Slots, picks: Sequence[_Pick]) -> Level:
    """The deepest level so far."""
    frontier = len(picks[-2].path) if len(picks) > 1 else 1
    considered = frontier * picks[-1].logp.shape[1]
    return _join(root, slots, picks).level(len(picks), considered)


def _join(root: Tensor, slots: _Slots, picks: Sequence[_Pick]) -> Supertree:
    """The tree of all levels picked so far, every node kept.

    Nodes are numbered level by level, so row i of all scores is what node i's children got.
    """
    if not picks:
        return Supertree.root_only(root)
    zero, one = root.new_zeros(1), torch.zeros(1, device=root.device)
    counts = tuple(len(pick.path) for pick in picks)
    node, depth, first = _numbering(counts, root.device)
    parent = torch.cat([zero - 1, *(pick.parent for pick in picks)]) + first
    child = torch.cat([pick.child for pick in picks])
    scores = torch.cat(
        [slots.rows_of(pick, count) for pick, count in zip(picks, (1, *counts), strict=False)]
    )
    rivals = scores.index_select(0, parent[1:])
    head_logp = rivals.gather(1, child[:, None])
    return Supertree(
        token=torch.cat([root, *(pick.token for pick in picks)]),
        parent=parent,
        depth=depth,
        draft_logp=torch.cat((one, slots.logp[depth[1:] - 1, child])),
        head_logp=torch.cat((one, head_logp[:, 0])),
        path_logp=torch.cat([one, *(pick.path for pick in picks)]),
        draft_rank=torch.cat((zero, child + 1)),
        head_rank=torch.cat((zero, (rivals > head_logp).sum(-1) + 1)),
        kept=node,
        candidates=slots.candidates(len(picks)),
    )


@cache
def _numbering(counts: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """For levels of so many nodes: ids, depths, and the first id of the level above, each
    `[N + 1]`, the root included. Trees have few shapes, so these are made once, and kept: a
    recorded CUDA graph may read them at any time."""
    depth, first, above, known = [0], [0], 0, 1
    for level, count in enumerate(counts, start=1):
        depth += [level] * count
        first += [above] * count
        above, known = known, known + count
    return (
        torch.arange(known, device=device),
        torch.tensor(depth, device=device),
        torch.tensor(first, device=device),
    )

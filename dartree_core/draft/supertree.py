"""A draft tree as tensors, on the device where it was built."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


@dataclass(slots=True)
class Level:
    """Nodes of one depth, as the builder selected them.

    Attributes:
        depth: 1 for the root's children.
        considered: (parent, child) pairs that competed for this level.
        node: int64 `[q]`, node ids in the supertree.
        token: int64 `[q]`, target ids.
        parent: int64 `[q]`, node ids.
        draft_logp, head_logp, path_logp: float32 `[q]`, see `dartree_core.tree.DraftTree`.
        draft_rank, head_rank: int64 `[q]`, rank among the parent's alternatives, from 1.
    """

    depth: int
    considered: int
    node: Tensor
    token: Tensor
    parent: Tensor
    draft_logp: Tensor
    head_logp: Tensor
    path_logp: Tensor
    draft_rank: Tensor
    head_rank: Tensor


@dataclass(slots=True)
class Supertree:
    """Everything a builder made, and which of it is to be verified.

    `N` counts draft nodes; entry 0 of every column is the root.

    Attributes:
        token, parent, depth: int64 `[N + 1]`; the root's parent is -1.
        draft_logp, head_logp, path_logp: float32 `[N + 1]`, 0 for the root.
        draft_rank, head_rank: int64 `[N + 1]`, 0 for the root.
        kept: int64 `[n + 1]`, ascending node ids to verify, the root included.
        depth_bonus: Added per depth to the pruning key.
        candidates: Per slot that was expanded, the target ids that could be proposed.
    """

    token: Tensor
    parent: Tensor
    depth: Tensor
    draft_logp: Tensor
    head_logp: Tensor
    path_logp: Tensor
    draft_rank: Tensor
    head_rank: Tensor
    kept: Tensor
    depth_bonus: float = 0.0
    candidates: list[Tensor] = field(default_factory=list)

    @property
    def num_nodes(self) -> int:
        """N, draft nodes built; the root is not counted."""
        return len(self.token) - 1

    @property
    def select(self) -> Tensor:
        """Pruning keys, float32 `[N + 1]`."""
        return self.path_logp + self.depth_bonus * self.depth

    @classmethod
    def from_levels(
        cls, root: Tensor, levels: list[Level], candidates: list[Tensor], depth_bonus: float = 0.0
    ) -> Supertree:
        """Join levels, whose nodes are numbered in order, under a root `[1]`; all are kept."""
        zero, one = root.new_zeros(1), torch.zeros(1, device=root.device)
        depth = [root.new_full((len(lv.token),), lv.depth) for lv in levels]
        tree = cls(
            token=torch.cat([root, *(lv.token for lv in levels)]),
            parent=torch.cat([zero - 1, *(lv.parent for lv in levels)]),
            depth=torch.cat([zero, *depth]),
            draft_logp=torch.cat([one, *(lv.draft_logp for lv in levels)]),
            head_logp=torch.cat([one, *(lv.head_logp for lv in levels)]),
            path_logp=torch.cat([one, *(lv.path_logp for lv in levels)]),
            draft_rank=torch.cat([zero, *(lv.draft_rank for lv in levels)]),
            head_rank=torch.cat([zero, *(lv.head_rank for lv in levels)]),
            kept=zero,
            depth_bonus=depth_bonus,
            candidates=candidates,
        )
        tree.kept = torch.arange(tree.num_nodes + 1, device=root.device)
        return tree

    @classmethod
    def root_only(cls, root: Tensor) -> Supertree:
        """A tree that proposes nothing: verifying it is a plain decoding step."""
        return cls.from_levels(root, [], [])

    def best_path_logps(self, most: int) -> list[float]:
        """Path scores of the `most` best nodes, in the order in which `prune` keeps them."""
        scores: list[float] = self.path_logp[1:][self._order()[:most]].tolist()
        return scores

    def prune(self, budget: int) -> None:
        """Keep the `budget` nodes with the largest keys.

        With `depth_bonus <= 0` no child's key exceeds its parent's, and a stable order resolves
        ties to the lower id, which is the parent's: the kept set is closed under "parent of".
        NaN, which overflowing half-precision logits leave behind, counts as the worst key.
        """
        if self.num_nodes <= budget:
            return
        best = self._order()[:budget] + 1
        self.kept = torch.cat((self.kept[:1], best.sort().values))

    def _order(self) -> Tensor:
        """Draft nodes (from 0) by descending key, ties by id."""
        keys = self.select[1:].nan_to_num(nan=float("-inf"), neginf=float("-inf"))
        return torch.sort(keys, descending=True, stable=True).indices


def ancestors(parent: Tensor) -> Tensor:
    """Which rows a row descends from, itself included.

    Args:
        parent: int64 `[m]`, `parent[i] < i`, -1 for the root.

    Returns:
        bool `[m, m]`, True at (i, j) when j lies on i's path from the root.
    """
    m = len(parent)
    rows = torch.arange(m, device=parent.device)
    reach = torch.zeros(m, m, device=parent.device)
    reach[rows, parent.clamp(min=0)] = 1
    reach[rows, rows] = 1
    # Squaring doubles the reach; paths are shorter than m, usually by far.
    span = 1
    while span < m:
        wider = (reach @ reach).clamp_(max=1)
        if torch.equal(wider, reach):
            break
        reach, span = wider, span * 2
    return reach.bool()


def finish(steps: Generator[Level, None, T]) -> T:
    """Run a builder to its end without looking at its levels."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            value: T = stop.value
            return value

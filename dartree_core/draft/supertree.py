"""A draft tree as tensors, on the device where it was built."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from dartree_core.compiled.arrays import Array

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
        confidence: float32 `[N + 1]`, log of the head's own estimate that the drafter is right
            along a node's path, its own token apart; None from a head that makes none.
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
    confidence: Tensor | None = None

    @property
    def estimates(self) -> Tensor:
        """Log of the chance that a node is accepted, as far as drafter and head can tell:
        float32 `[N + 1]`, never larger than the parent's."""
        return self.path_logp if self.confidence is None else self.path_logp + self.confidence

    @property
    def num_nodes(self) -> int:
        """N, draft nodes built; the root is not counted."""
        return len(self.token) - 1

    @property
    def select(self) -> Tensor:
        """Pruning keys, float32 `[N + 1]`."""
        return self.path_logp + self.depth_bonus * self.depth

    @classmethod
    def root_only(cls, root: Tensor) -> Supertree:
        """A tree that proposes nothing: verifying it is a plain decoding step."""
        zero, one = root.new_zeros(1), torch.zeros(1, device=root.device)
        return cls(root, zero - 1, zero, one, one, one, zero, zero, kept=zero)

    def level(self, depth: int, considered: int) -> Level:
        """The nodes of one depth; `considered` as in `Level`."""
        at = (self.depth == depth).nonzero()[:, 0]
        return Level(
            depth=depth,
            considered=considered,
            node=at,
            token=self.token[at],
            parent=self.parent[at],
            draft_logp=self.draft_logp[at],
            head_logp=self.head_logp[at],
            path_logp=self.path_logp[at],
            draft_rank=self.draft_rank[at],
            head_rank=self.head_rank[at],
        )

    def best_path_logps(self, most: int) -> list[float]:
        """Estimates of the `most` best nodes, in the order in which `prune` keeps them."""
        scores: list[float] = self.estimates[1:][self._order_on_host()[:most]].tolist()
        return scores

    def prune(self, budget: int) -> None:
        """Keep the `budget` nodes with the largest keys.

        With `depth_bonus <= 0` no child's key exceeds its parent's, and a stable order resolves
        ties to the lower id, which is the parent's: the kept set is closed under "parent of".
        NaN, which overflowing half-precision logits leave behind, counts as the worst key.
        """
        if self.num_nodes > budget:
            self._keep(order_of_tensors(self.select[1:])[:budget])

    def prune_on_host(self, budget: int) -> None:
        """As `prune`, where nothing records what is done."""
        if self.num_nodes > budget:
            self._keep(self._order_on_host()[:budget])

    def _keep(self, best: Tensor) -> None:
        self.kept = torch.cat((self.kept[:1], (best + 1).sort().values))

    def _order_on_host(self) -> Tensor:
        """Draft nodes (from 0) by descending key, ties by id. On a CPU calling a tensor operation
        takes longer than what it does here."""
        if self.token.device.type != "cpu":
            return order_of_tensors(self.select[1:])
        bonus = np.float32(self.depth_bonus) * self.depth.numpy().astype(np.float32)
        return torch.from_numpy(order_of_arrays((self.path_logp.numpy() + bonus)[1:]))


def order_of_tensors(keys: Tensor) -> Tensor:
    """int64 places of float32 keys in descending order; NaN counts as minus infinity."""
    keys = keys.nan_to_num(nan=float("-inf"), neginf=float("-inf"))
    return torch.sort(keys, descending=True, stable=True).indices


def order_of_arrays(keys: Array) -> Array:
    """As `order_of_tensors`."""
    order: Array = np.argsort(np.where(np.isnan(keys), np.inf, -keys), kind="stable")
    return order


def ancestors(parent: Tensor) -> Tensor:
    """Which rows a row descends from, itself included.

    Args:
        parent: int64 `[m]`, `parent[i] < i`, -1 for the root.

    Returns:
        bool `[m, m]`, True at (i, j) when j lies on i's path from the root.
    """
    if parent.device.type != "cpu":
        return ancestors_by_squaring(parent)
    reach = np.eye(len(parent), dtype=np.bool_)
    for row, above in enumerate(parent.tolist()):
        if above >= 0:
            reach[row, :row] = reach[above, :row]
    return torch.from_numpy(reach)


def ancestors_by_squaring(parent: Tensor) -> Tensor:
    """As `ancestors`, in a few operations for any number of rows, where each is a launch."""
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


def finish(steps: Generator[object, None, T]) -> T:
    """Run a builder to its end without looking at its levels."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            value: T = stop.value
            return value

"""The draft tree of one round, as columns.

A tree is the *supertree*: every node the builder made, including those that pruning dropped
before verification. Node 0 is the root, which is already part of the answer. Columns travel as
they are into traces and terminals; nothing here imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import compress
from typing import Any, Literal

State = Literal["hit", "walked_past", "unreached", "pruned"]
"""`hit` accepted; `walked_past` a verified sibling of the target's choice; `unreached` verified
below a node that was walked past; `pruned` built but never verified."""

BonusFate = Literal["not_proposed", "level_pruned", "final_pruned", "not_expanded"]
"""Why the tree lacked the bonus token: not among the parent's candidates; a candidate that lost
the selection at its depth; a node that pruning dropped; its parent was never expanded. With
`detail="basic"` on a CPU a tree is grown only as far as something in it may be verified: what lies
beyond was not expanded then, or lost at its depth, where full detail may say that pruning dropped
it."""


@dataclass(frozen=True, slots=True)
class DraftTree:
    """One round's supertree, column by column; entry i of every column belongs to node i.

    Attributes:
        token: Target token ids.
        parent: Node ids, `parent[i] < i`; the root's is -1.
        depth: 0 for the root.
        slot: Block slot that proposed the node, `depth - 1`; the root's is -1.
        draft_logp: Marginal log-probability within the slot's candidate set, before correction.
        head_logp: Corrected log-probability given the path; the score that built the tree.
        path_logp: Sum of `head_logp` from the root (0 for the root).
        select: Pruning key, `path_logp + depth_bonus * depth`.
        kept: True where the node was verified.
        state: What became of the node.
        target_logp: With full detail, the target's log-probability of the node given its path
            (softmax of the raw logits); NaN where the target never scored it.
        draft_rank, head_rank, target_rank: With full detail, rank of the token among its
            parent's alternatives, 1 is best; 0 where unknown.
        coverage: With full detail, for a verified node the target's mass on its kept children;
            NaN where the target never scored it.
    """

    token: Sequence[int]
    parent: Sequence[int]
    depth: Sequence[int]
    slot: Sequence[int]
    draft_logp: Sequence[float]
    head_logp: Sequence[float]
    path_logp: Sequence[float]
    select: Sequence[float]
    kept: Sequence[bool]
    state: Sequence[State]
    target_logp: Sequence[float] | None = None
    draft_rank: Sequence[int] | None = None
    head_rank: Sequence[int] | None = None
    target_rank: Sequence[int] | None = None
    coverage: Sequence[float] | None = None

    def __len__(self) -> int:
        return len(self.token)

    @property
    def num_verified(self) -> int:
        """Draft nodes the target scored, the root not counted."""
        return sum(self.kept) - 1

    @property
    def height(self) -> int:
        """Depth of the deepest verified node."""
        return max(compress(self.depth, self.kept), default=0)

    def children(self, node: int) -> list[int]:
        """Node ids of `node`'s children, in node order."""
        return [i for i, p in enumerate(self.parent) if p == node]

    def path(self, node: int) -> list[int]:
        """Node ids from the root to `node`, both included."""
        ids = []
        while node >= 0:
            ids.append(node)
            node = self.parent[node]
        return ids[::-1]

    def level(self, depth: int) -> list[int]:
        """Node ids at `depth`, in node order."""
        return [i for i, d in enumerate(self.depth) if d == depth]

    def cut(self) -> float | None:
        """The smallest pruning key that survived, or None when nothing was pruned."""
        if all(self.kept):
            return None
        return min(s for s, k in zip(self.select, self.kept, strict=True) if k)

    def problems(self) -> Iterator[str]:
        """Violated invariants, one sentence each; none for a well-formed tree."""
        n = len(self)
        for f in fields(self):
            column = getattr(self, f.name)
            if column is not None and len(column) != n:
                yield f"column {f.name} has {len(column)} entries for {n} nodes"
                return
        if n == 0:
            yield "the tree has no root"
            return
        if self.parent[0] != -1 or self.depth[0] != 0 or not self.kept[0]:
            yield "node 0 is not a verified root"
        siblings: set[tuple[int, int]] = set()
        for i in range(1, n):
            p = self.parent[i]
            if not 0 <= p < i:
                yield f"node {i} has parent {p}, which does not come before it"
                return
            if self.depth[i] != self.depth[p] + 1:
                yield f"node {i} at depth {self.depth[i]} hangs under depth {self.depth[p]}"
            if self.kept[i] and not self.kept[p]:
                yield f"node {i} is kept but its parent {p} is not"
            if (p, self.token[i]) in siblings:
                yield f"node {i} repeats token {self.token[i]} under parent {p}"
            siblings.add((p, self.token[i]))
            if (self.state[i] == "pruned") == bool(self.kept[i]):
                yield f"node {i} is {self.state[i]} with kept={self.kept[i]}"
            if self.state[i] == "hit" and self.state[p] != "hit":
                yield f"node {i} is a hit below a node that is not"

    def to_dict(self) -> dict[str, list[Any]]:
        """Columns as JSON-ready lists: floats to 4 decimals, -inf and NaN as None."""
        out: dict[str, list[Any]] = {}
        for f in fields(self):
            column = getattr(self, f.name)
            if column is None:
                continue
            out[f.name] = rounded(column) if f.name in _FLOATS else list(column)
        return out

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DraftTree:
        """Inverse of `to_dict`; unknown columns are ignored, None becomes NaN."""
        columns: dict[str, Any] = {}
        for f in fields(cls):
            column = data.get(f.name)
            if column is None:
                continue
            if f.name in _FLOATS and None in column:
                column = [math.nan if x is None else x for x in column]
            columns[f.name] = tuple(column)
        return cls(**columns)


_FLOATS = {"draft_logp", "head_logp", "path_logp", "select", "target_logp", "coverage"}


def rounded(column: Sequence[float]) -> list[float | None]:
    """The column as records hold it: to 4 decimals, None for infinities and NaN."""
    # `round(x, 4)` writes a decimal number and reads it again, five times as long.
    return [round(x * 1e4) / 1e4 if -1e9 < x < 1e9 else _rounded(x) for x in column]


def _rounded(x: float) -> float | None:
    return round(x, 4) if math.isfinite(x) else None

"""A round while it happens: the tree as the stage events have told it so far."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Literal, TypeAlias

from dartree_core.events import BlockDrafted, DepthExpanded, TreePruned, TreeVerified
from dartree_core.tree import DraftTree, State

Phase = Literal["draft", "expand", "prune", "verify"]
"""What has just happened: the block was drafted, a depth was added, the supertree was pruned,
the target scored the kept nodes."""

StageEvent: TypeAlias = BlockDrafted | DepthExpanded | TreePruned | TreeVerified


class PartialRound:
    """The round under construction, with the attributes of `RoundDone` that are known already.

    Attributes:
        turn, round: As in the events.
        phase: The last thing that happened, see `Phase`.
        block: The drafter's marginals, once drafted.
        considered: Depth to the number of (parent, child) pairs that competed there.
        tokens, accepted, bonus: Empty, the root alone and None until the target has scored the
            tree; then what the round is about to emit.
    """

    provenance: Sequence[str] = ()
    bonus_fate = None
    text_delta = ""
    note = ""
    expected: float | None = None

    def __init__(
        self, turn: int, number: int, root: int, depth_bonus: float = 0.0, position: int = -1
    ) -> None:
        self.turn = turn
        self.round = number
        self.position = position
        self.phase: Phase = "draft"
        self.block: BlockDrafted | None = None
        self.considered: dict[int, int] = {}
        self.accepted: tuple[int, ...] = (0,)
        self.bonus: int | None = None
        self.ms: Mapping[str, float] = {}
        self._bonus_per_depth = depth_bonus
        self._rows: dict[int, tuple[int, int, int, float, float, float]] = {
            0: (root, -1, 0, 0.0, 0.0, 0.0)
        }
        self._kept: frozenset[int] | None = None
        self._target: dict[int, float] = {}
        self._tree: DraftTree | None = None

    @property
    def tokens(self) -> tuple[int, ...]:
        """Tokens about to be emitted; empty before verification."""
        if self.bonus is None:
            return ()
        return (*(self._rows[i][0] for i in self.accepted[1:]), self.bonus)

    @property
    def tree(self) -> DraftTree:
        """The tree so far. A node nobody has judged yet is `unreached`, see `phase`."""
        if self._tree is None:
            self._tree = self._build()
        return self._tree

    def snapshot(self) -> PartialRound:
        """The round as it is now, which later events do not reach."""
        now = copy(self)
        now.considered, now._rows = dict(self.considered), dict(self._rows)
        return now

    def apply(self, event: StageEvent) -> None:
        """Add what one stage event says."""
        self._tree = None
        match event:
            case BlockDrafted():
                self.phase = "draft"
                self.block = event
            case DepthExpanded():
                self.phase = "expand"
                self.considered[event.depth] = event.considered
                for i, node in enumerate(event.node):
                    self._rows[node] = (
                        event.token[i],
                        event.parent[i],
                        event.depth,
                        event.draft_logp[i],
                        event.head_logp[i],
                        event.path_logp[i],
                    )
            case TreePruned():
                self.phase = "prune"
                self._kept = frozenset(event.kept)
            case TreeVerified():
                self.phase = "verify"
                self._kept = frozenset(event.node)
                self._target = dict(zip(event.node, event.target_logp, strict=True))
                self._walk(dict(zip(event.node, event.choice, strict=True)))

    def _walk(self, choice: Mapping[int, int]) -> None:
        """Follow the target's own choices from the root through the kept nodes."""
        child = {(row[1], row[0]): node for node, row in self._rows.items() if node in choice}
        path, node = [0], 0
        while (found := child.get((node, choice.get(node, -1)))) is not None:
            path.append(found)
            node = found
        self.accepted = tuple(path)
        self.bonus = choice.get(node)

    def _states(self, order: Sequence[int]) -> list[State]:
        hits = set(self.accepted)
        out: list[State] = []
        for node in order:
            if self._kept is not None and node not in self._kept:
                out.append("pruned")
            elif node in hits:
                out.append("hit")
            elif self.phase == "verify" and self._rows[node][1] in hits:
                out.append("walked_past")
            else:
                out.append("unreached")
        return out

    def _build(self) -> DraftTree:
        order = sorted(self._rows)
        place = {node: i for i, node in enumerate(order)}
        rows = [self._rows[node] for node in order]
        verified = self.phase == "verify"
        return DraftTree(
            token=tuple(r[0] for r in rows),
            parent=tuple(place.get(r[1], -1) for r in rows),
            depth=tuple(r[2] for r in rows),
            slot=tuple(r[2] - 1 for r in rows),
            draft_logp=tuple(r[3] for r in rows),
            head_logp=tuple(r[4] for r in rows),
            path_logp=tuple(r[5] for r in rows),
            select=tuple(r[5] + self._bonus_per_depth * r[2] for r in rows),
            kept=tuple(self._kept is None or node in self._kept for node in order),
            state=tuple(self._states(order)),
            target_logp=tuple(self._target.get(n, math.nan) for n in order) if verified else None,
        )

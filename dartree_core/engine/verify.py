"""Verification: what the target makes of a tree.

The target scores `[root] + kept nodes` in one pass, every row seeing the committed context, its
ancestors and itself. Then its own choices are walked: from the root, as long as the choice at a
node is one of its children, move there. Accepted nodes are by construction what plain decoding
would have emitted; the first choice without a node is the bonus token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dartree_core.draft.supertree import Supertree, ancestors
from dartree_core.engine.sampling import Chooser

_NOBODY = torch.tensor([-1])
_ITSELF = torch.tensor([[True]])


@dataclass(slots=True)
class VerifyPlan:
    """A tree as rows of one target pass; row 0 is the root, rows follow node order.

    Attributes:
        token: int64 `[n + 1]`.
        parent: int64 `[n + 1]`, rows; the root's is -1.
        position: int64 `[n + 1]`, absolute.
        visible: bool `[n + 1, n + 1]`, ancestors and self.
    """

    token: Tensor
    parent: Tensor
    position: Tensor
    visible: Tensor

    @classmethod
    def of(cls, tree: Supertree, start: int) -> VerifyPlan:
        """Lay out the kept nodes of `tree`, whose root sits at position `start`."""
        if not tree.num_nodes:
            # A plain step in as few operations as possible: there is one for every token.
            return cls(tree.token, _NOBODY, torch.tensor([start]), _ITSELF)
        there = tree.kept.device.type != "cpu"
        return cls.of_tensors(tree, start) if there else cls.of_arrays(tree, start)

    @classmethod
    def of_tensors(cls, tree: Supertree, start: int) -> VerifyPlan:
        """As `of`, where the tree is: nothing waits for an accelerator."""
        kept = tree.kept
        row_of = torch.zeros(len(tree.token), dtype=torch.int64, device=kept.device)
        row_of[kept] = torch.arange(len(kept), device=kept.device)
        parent = row_of[tree.parent[kept].clamp(min=0)]
        parent[0] = -1
        return cls(
            token=tree.token[kept],
            parent=parent,
            position=start + tree.depth[kept],
            visible=ancestors(parent),
        )

    @classmethod
    def of_arrays(cls, tree: Supertree, start: int) -> VerifyPlan:
        """As `of`, on the host, where calling a tensor operation takes longer than its work."""
        kept = tree.kept.numpy()
        parent = np.searchsorted(kept, tree.parent.numpy()[kept])
        parent[0] = -1
        rows = torch.from_numpy(parent)
        return cls(
            token=torch.from_numpy(tree.token.numpy()[kept]),
            parent=rows,
            position=torch.from_numpy(start + tree.depth.numpy()[kept]),
            visible=ancestors(rows),
        )


@dataclass(slots=True)
class Verdict:
    """The outcome of a walk.

    Attributes:
        accepted: Rows of the accepted path, the root (0) first.
        tokens: Token ids of the accepted draft nodes.
        bonus: The target's own token after the path.
        choice: Per row the target's choice, or -1 where nobody asked.
    """

    accepted: list[int]
    tokens: list[int]
    bonus: int
    choice: list[int]


def walk(
    plan: VerifyPlan,
    logits: Tensor,
    chooser: Chooser,
    *,
    argmax: Tensor | None = None,
    every_row: bool = False,
) -> Verdict:
    """Follow the target's choices through the tree.

    Args:
        plan: The rows that were scored.
        logits: float32 `[n + 1, V]`.
        chooser: The target's choices.
        argmax: int64 `[n + 1]` on the host, each row's argmax where it is known already.
        every_row: Choose at every row, for display; else a row is only asked when reached,
            unless the argmax of all of them is one wait for an accelerator.
    """
    token: list[int] = plan.token.tolist()
    parent: list[int] = plan.parent.tolist()
    start = int(plan.position[0])
    child = {(parent[i], token[i]): i for i in range(1, len(token))}
    paths: list[list[int]] = []
    for i, p in enumerate(parent):
        paths.append([*paths[p], token[i]] if i else [])
    choice = [-1] * len(token)
    at_once = chooser.plain_argmax and (argmax is not None or logits.device.type != "cpu")
    if at_once or every_row:
        positions = [start + len(path) + 1 for path in paths]
        if argmax is None or not chooser.plain_argmax:
            argmax = chooser.choose(logits, positions, paths)
        choice = argmax.tolist()
    node, accepted = 0, [0]
    while True:
        if choice[node] < 0:
            at = start + len(paths[node]) + 1
            choice[node] = int(chooser.choose(logits[node : node + 1], [at], [paths[node]]))
        following = child.get((node, choice[node]))
        if following is None:
            return Verdict(accepted, [token[i] for i in accepted[1:]], choice[node], choice)
        node = following
        accepted.append(node)

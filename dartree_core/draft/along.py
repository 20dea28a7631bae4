"""Along one known path: what a correction head says there, and how far a tree follows it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from dartree_core.draft.heads import CorrectionHead
from dartree_core.draft.heads.base import Embed
from dartree_core.draft.supertree import Supertree


def along(
    head: CorrectionHead, embed: Embed, hidden: Tensor, path: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """What `head.correct` needs at every slot, the path up to there being taken.

    Args:
        head: The correction head.
        embed: The target's embedding.
        hidden: `[k, H]`, final hidden states of the block's first slots.
        path: int64 `[k]` or longer: the root, then the token of every slot but the last.

    Yields:
        Per slot its row of `head.prepare`'s result, and states `[1, S]`.
    """
    shared = head.prepare(hidden)
    states = head.root_state(path[:1], embed(path[:1]))
    for slot in range(len(hidden)):
        if slot:
            token = path[slot : slot + 1]
            states = head.advance(states, token, embed(token), shared[slot - 1])
        yield shared[slot], states


def walk(tree: Supertree, answer: Sequence[int]) -> int:
    """Nodes of `tree` that `answer` walks through, the root not counted."""
    kept = tree.kept.tolist()
    token, parent = tree.token.tolist(), tree.parent.tolist()
    child = {(parent[i], token[i]): i for i in kept[1:]}
    node = 0
    for depth, wanted in enumerate(answer):
        following = child.get((node, wanted))
        if following is None:
            return depth
        node = following
    return len(answer)

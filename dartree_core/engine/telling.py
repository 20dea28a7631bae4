"""The events that precede a round's result, for those who follow how it came about."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from dartree_core.config import Method
from dartree_core.draft.builders.dartree import METHODS
from dartree_core.draft.drafter import BlockDraft
from dartree_core.draft.supertree import Level, Supertree
from dartree_core.events import BlockDrafted, DepthExpanded

_SHOWN_PER_SLOT = 12


class Teller:
    """Makes the events of one round.

    Args:
        turn, round_: For events.
    """

    def __init__(self, turn: int, round_: int) -> None:
        self._turn, self._round = turn, round_

    def drafted(self, block: BlockDraft) -> BlockDrafted:
        """The block's likeliest tokens, slot by slot."""
        logp, rows = torch.log_softmax(block.base_logits, dim=-1).topk(
            min(_SHOWN_PER_SLOT, block.base_logits.shape[1]), dim=-1
        )
        token = block.vocabulary.to_target(rows)
        return BlockDrafted(self._turn, self._round, token.tolist(), logp.tolist())

    def expanded(self, level: Level) -> DepthExpanded:
        """A level that was just selected."""
        return DepthExpanded(
            self._turn,
            self._round,
            depth=level.depth,
            considered=level.considered,
            node=level.node.tolist(),
            token=level.token.tolist(),
            parent=level.parent.tolist(),
            draft_logp=level.draft_logp.tolist(),
            head_logp=level.head_logp.tolist(),
            path_logp=level.path_logp.tolist(),
        )

    def levels(self, method: Method, tree: Supertree, words: int) -> Iterator[DepthExpanded]:
        """The levels of a whole tree on the host, as `expanded` would have told them one by one.

        Args:
            method: Who grew it.
            tree: What was grown, and perhaps joined to since.
            words: Size of the draft vocabulary.
        """
        depth: list[int] = tree.depth.tolist()
        levels: list[list[int]] = [[] for _ in range(max(depth) + 1)]
        for node, at in enumerate(depth):
            levels[at].append(node)
        token, parent, rank = tree.token.tolist(), tree.parent.tolist(), tree.draft_rank.tolist()
        logps = [x.tolist() for x in (tree.draft_logp, tree.head_logp, tree.path_logp)]
        frontier = 1
        for at, nodes in enumerate(levels[1:], start=1):
            draft_logp, head_logp, path_logp = ([column[i] for i in nodes] for column in logps)
            above, built = [parent[i] for i in nodes], sum(rank[i] > 0 for i in nodes)
            if method not in METHODS:
                considered = len(set(above)) * words
            elif built:
                considered = frontier * len(tree.candidates[at - 1])
            else:
                considered = 0  # below what the builder made
            yield DepthExpanded(
                self._turn,
                self._round,
                depth=at,
                considered=max(considered, len(nodes)),
                node=nodes,
                token=[token[i] for i in nodes],
                parent=above,
                draft_logp=draft_logp,
                head_logp=head_logp,
                path_logp=path_logp,
            )
            frontier = built

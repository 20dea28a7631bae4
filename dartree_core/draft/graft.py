"""Grafting: continuations found in the text so far join a draft tree.

A drafter guesses from what it learnt; a copy is better guessed from what it copies. Paths that
`lookup` finds enter the supertree, are scored, and are pruned by the same rule as all other nodes,
within the same budget. The draft still only proposes, so nothing about the output changes.

A grafted token's probability is the drafter's own or, if that is larger, the share of such matches
that have been right: a copy model mixed into the drafter's distribution, so that siblings keep
what is left. Shares are learnt online (`shares`), apart for tokens that the drafter had not
proposed, which are seldom right where it is good. Where they are low no grafted node survives
pruning, and nothing is scored that could not: grafting that does not pay switches itself off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from dartree_core.config import Method
from dartree_core.draft.lookup import Match, SuffixIndex
from dartree_core.draft.opinion import Opinion
from dartree_core.draft.shares import LACKED, SECOND, SEEN, Shares
from dartree_core.draft.supertree import Supertree

REACH = 32
"""Most tokens of a grafted path; it may go deeper than the drafter's block."""
GRAFTED: tuple[Method, ...] = ("ddtree", "dartree", "dartree-fixed")
"""Methods that grow trees. A chain has no room for a second opinion."""

_WORTHWHILE = 0.05
"""Tokens that missing nodes must promise before they are scored."""
_PROMISING = 2.0
"""Tokens that a match must promise to be worth a draft when drafts have not been paying."""
_HOPELESS = math.log(1e-4)
"""Path scores below this are not worth a node."""


@dataclass(slots=True)
class _Columns:
    """A supertree as lists, while paths are grafted."""

    token: list[int]
    parent: list[int]
    depth: list[int]
    logp: list[float]  # given the path
    draft_logp: list[float]
    doubt: list[float] | None  # what a node adds to its parent's confidence
    children: dict[int, list[int]]

    @classmethod
    def of(cls, tree: Supertree) -> _Columns:
        token, parent, depth = torch.stack((tree.token, tree.parent, tree.depth)).tolist()
        logp, draft_logp = torch.stack((tree.head_logp, tree.draft_logp)).tolist()
        children: dict[int, list[int]] = {}
        for node in range(1, len(token)):
            children.setdefault(parent[node], []).append(node)
        doubt = None
        if tree.confidence is not None:
            doubt = (tree.confidence - tree.confidence[tree.parent.clamp(min=0)]).tolist()
        return cls(token, parent, depth, logp, draft_logp, doubt, children)

    def child(self, node: int, token: int) -> int | None:
        """The child of `node` with this token."""
        return next((c for c in self.children.get(node, ()) if self.token[c] == token), None)

    def path_logp(self, node: int) -> float:
        """Sum of scores from the root to `node`."""
        total = 0.0
        while node:
            total += self.logp[node]
            node = self.parent[node]
        return total

    def add(self, parent: int, token: int, logp: float, draft_logp: float) -> int:
        """A new child; returns its id."""
        node = len(self.token)
        self.token.append(token)
        self.parent.append(parent)
        self.depth.append(self.depth[parent] + 1)
        self.logp.append(logp)
        self.draft_logp.append(draft_logp)
        if self.doubt is not None:
            self.doubt.append(0.0)
        self.children.setdefault(parent, []).append(node)
        return node

    def mix(self, node: int, share: float) -> bool:
        """Raise a node's probability to `share`, if it is lower; its siblings keep the rest, in
        their proportions. The head's doubt was about the drafter, not about a copy."""
        own = math.exp(self.logp[node])
        if not share > own:
            return False
        rest = math.log1p(-share) - math.log1p(-own)
        for sibling in self.children[self.parent[node]]:
            self.logp[sibling] += rest
        self.logp[node] = math.log(share)
        if self.doubt is not None:
            self.doubt[node] = 0.0
        return True

    def sums(self, column: list[float]) -> list[float]:
        """What `column` adds up to from the root to every node."""
        total = [0.0] * len(column)
        for node in range(1, len(column)):
            total[node] = total[self.parent[node]] + column[node]
        return total

    def join(self, tree: Supertree) -> Supertree:
        """`tree` with these scores and nodes, all of them kept."""
        path = self.sums(self.logp)
        token, parent, depth = torch.tensor([self.token, self.parent, self.depth])
        draft_logp, head_logp, path_logp = torch.tensor([self.draft_logp, self.logp, path])
        unranked = tree.draft_rank.new_zeros(len(path) - len(tree.token))
        return replace(
            tree,
            token=token,
            parent=parent,
            depth=depth,
            draft_logp=draft_logp,
            head_logp=head_logp,
            path_logp=path_logp,
            draft_rank=torch.cat((tree.draft_rank, unranked)),
            head_rank=torch.cat((tree.head_rank, unranked)),
            kept=torch.arange(len(path)),
            confidence=None if self.doubt is None else torch.tensor(self.sums(self.doubt)),
        )


class Grafter:
    """One per decoder: what it learns about matches serves all turns."""

    def __init__(self) -> None:
        self._seen, self._lacked, self._second = Shares(SEEN), Shares(LACKED), Shares(SECOND)
        self._missed: list[tuple[tuple[int, ...], int]] = []

    def promising(self, index: SuffixIndex) -> bool:
        """True when a match alone promises enough to end a pause in drafting."""
        return any(self._promise(match, 0) >= _PROMISING for match in index.matches(REACH))

    def learn(self, index: SuffixIndex, emitted: Sequence[int]) -> None:
        """Tokens that became part of the text: judge what matches said of them, then index them.

        Every token counts, whatever drafted it, so shares are known before they are needed and
        stay known while grafting is of no use.
        """
        for path, length in self._missed:
            reached = len(path) - 1
            if len(emitted) > reached and tuple(emitted[:reached]) == path[:-1]:
                self._lacked.learn(length, emitted[reached] == path[-1])
        self._missed = []
        for token in emitted:
            for match in index.matches(1):
                shares = self._second if match.rank else self._seen
                shares.learn(match.length, match.tokens[0] == token)
            index.extend([token])

    def graft(
        self, tree: Supertree, index: SuffixIndex, opinion: Opinion, *, limit: int, reach: int
    ) -> Supertree:
        """Join what the index knows to a finished tree, and prune to the budget again.

        Args:
            tree: What the builder made, on the host.
            index: The text up to and including the root.
            opinion: Of the same tree's drafter and head.
            limit: Nodes to keep.
            reach: Deepest node the turn has use for; may exceed the block.

        Returns:
            The tree: its own nodes by their old ids, some of them with new scores, then the new
            ones, which have no ranks. The very same tree where the index has nothing to say.
        """
        self._missed = []
        matches = index.matches(min(reach, REACH, limit))
        if not matches or not tree.num_nodes:
            return tree
        columns = _Columns.of(tree)
        changed = [self._join(columns, match, opinion) for match in matches]
        if not any(changed):
            return tree
        joined = columns.join(tree)
        joined.prune_on_host(limit)
        return joined

    def _share(self, match: Match, step: int, *, lacked: bool) -> float:
        """Chance of the match's token number `step`, those before it being right."""
        if match.rank and step == 0:
            return self._second.share(match.length)
        return (self._lacked if lacked else self._seen).share(match.length + step)

    def _promise(self, match: Match, missing: int) -> float:
        """Tokens expected of the path from number `missing` on, which the drafter lacks."""
        chance, total = 1.0, 0.0
        for step in range(len(match.tokens)):
            chance *= self._share(match, step, lacked=step == missing)
            total += chance if step >= missing else 0.0
        return total

    def _join(self, columns: _Columns, match: Match, opinion: Opinion) -> bool:
        """Walk the match's path through the tree, raising scores, and add what is missing.

        Returns:
            True when anything changed.
        """
        node, changed = 0, False
        for step, token in enumerate(match.tokens):
            child = columns.child(node, token)
            if child is None:
                break
            changed |= columns.mix(child, self._share(match, step, lacked=False))
            node = child
        else:
            return changed
        inside = step < opinion.slots
        if inside and not match.rank:
            self._missed.append((match.tokens[: step + 1], match.length + step))
        if self._promise(match, step) < _WORTHWHILE:
            return changed
        path, known = columns.path_logp(node), opinion.of(match.tokens, step)
        for at in range(step, len(match.tokens)):
            share = self._share(match, at, lacked=inside and at == step)
            own, draft = known[at - step] if at - step < len(known) else (-math.inf, -math.inf)
            path += max(own, math.log(share))
            if not path >= _HOPELESS:
                break
            node = columns.add(node, match.tokens[at], own, draft)
            columns.mix(node, share)
            changed = True
        return changed

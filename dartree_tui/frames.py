"""A finished round once more, stage by stage: drafted, grown depth by depth, pruned, verified.

Recorded trees need no stage events for that: the columns of a tree tell the order it grew in.
"""

from __future__ import annotations

from dartree_core.events import BlockDrafted, DepthExpanded, RoundDone, TreePruned
from dartree_tui.partial import PartialRound
from dartree_tui.store import AnyRound

_GUESSES = 8


def frame_count(done: RoundDone) -> int:
    """Frames of a round: the draft, one a depth, the pruning where there was one, the end."""
    height = max(done.tree.depth, default=0)
    pruned = not all(done.tree.kept)
    return 1 + height + int(pruned) + 1 if height else 1


def frame(done: RoundDone, index: int) -> AnyRound:
    """The round as it was at a frame; from the last frame on, the round itself."""
    tree = done.tree
    height = max(tree.depth, default=0)
    if index >= frame_count(done) - 1:
        return done
    beta = 0.0
    if len(tree) > 1 and tree.depth[1]:
        beta = (tree.select[1] - tree.path_logp[1]) / tree.depth[1]
    partial = PartialRound(done.turn, done.round, tree.token[0], beta, done.position)
    partial.apply(_block(done, height))
    for depth in range(1, min(index, height) + 1):
        nodes = tree.level(depth)
        partial.apply(
            DepthExpanded(
                done.turn,
                done.round,
                depth,
                0,
                nodes,
                [tree.token[i] for i in nodes],
                [tree.parent[i] for i in nodes],
                [tree.draft_logp[i] for i in nodes],
                [tree.head_logp[i] for i in nodes],
                [tree.path_logp[i] for i in nodes],
            )
        )
    if index > height:
        kept = [i for i, k in enumerate(tree.kept) if k]
        partial.apply(TreePruned(done.turn, done.round, kept))
    return partial


def _block(done: RoundDone, height: int) -> BlockDrafted:
    """The marginals as far as the tree still knows them: its own tokens, likeliest first."""
    tree = done.tree
    tokens: list[list[int]] = []
    logps: list[list[float]] = []
    for depth in range(1, height + 1):
        best: dict[int, float] = {}
        for i in tree.level(depth):
            best.setdefault(tree.token[i], tree.draft_logp[i])
        order = sorted(best, key=lambda token: -best[token])[:_GUESSES]
        tokens.append(order)
        logps.append([best[token] for token in order])
    return BlockDrafted(done.turn, done.round, tokens, logps)

"""A round made ready for the eye: columns, rows, shown tokens, and what became of each node.

Works on a finished round and on one still under way, so that views need no second code path.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from dartree_core.events import RoundDone
from dartree_core.glyphs import STATE_GLYPHS, STATE_WORDS, show_token
from dartree_core.tree import DraftTree, State
from dartree_tui.partial import PartialRound, Phase
from dartree_tui.vocab import Words

NodeState: TypeAlias = State | Literal["candidate"]
"""A node's fate; `candidate` while nobody has judged it."""

BONUS = -1
"""Stands for the bonus token where a node id is expected: it is in no tree."""

GLYPHS: Mapping[str, str] = dict(STATE_GLYPHS.items()) | {"candidate": "◌", "bonus": "+"}
WORDS: Mapping[str, str] = dict(STATE_WORDS.items()) | {"candidate": "candidate", "bonus": "bonus"}
NODE_STATES: tuple[NodeState, ...] = (*STATE_GLYPHS, "candidate")


RoundLike: TypeAlias = RoundDone | PartialRound
"""What every view can show: a finished round, or one under way."""


def token_text(vocab: Words, token: int) -> str:
    """A token as printable text of known width; `#id` when its text is not known."""
    text = vocab.get(token)
    if text is None:
        return f"#{token}"
    return show_token("", text) if isinstance(text, bytes) else show_token(text)


def probability(logp: float) -> float:
    """`exp(logp)`, NaN kept as it is."""
    return math.exp(logp) if logp == logp else math.nan


def phase_of(round_: RoundLike) -> Phase | Literal["done"]:
    """What has just happened to a round under way; `done` for a finished one."""
    return round_.phase if isinstance(round_, PartialRound) else "done"


def judged(round_: RoundLike) -> bool:
    """True once the target has scored the tree."""
    return phase_of(round_) in ("verify", "done")


def states_of(round_: RoundLike) -> tuple[NodeState, ...]:
    """Each node's state; before verification every node that is still in play is a candidate."""
    tree = round_.tree
    if judged(round_):
        return tuple(tree.state)
    fates: list[NodeState] = ["candidate" if kept else "pruned" for kept in tree.kept]
    fates[0] = "hit"
    return tuple(fates)


@dataclass(frozen=True, slots=True)
class Guess:
    """What the drafter's marginal proposes for a slot, before any tree exists there."""

    text: str
    p: float


@dataclass(frozen=True, slots=True)
class RoundView:
    """Layout facts of a round, computed once.

    Attributes:
        turn, number, phase: Which round, and how far it is.
        tree: The tree itself.
        state, text, p: Per node: fate, shown token, the head's probability for it.
        columns: Per depth, node ids in node order; the root's column comes first.
        row: Per node, its place in its column.
        children: Per node, its children in node order.
        accepted: Node ids of the accepted path, the root included.
        emitted: How many tokens of that path became part of the answer, the root not counted.
        bonus: The bonus token as shown, or None.
        guesses: Per slot, the drafter's marginal guesses (only while the round is under way).
        considered: Per depth, how many (parent, child) pairs competed, where known.
        note: Why the round did not speculate, or "".
    """

    turn: int
    number: int
    phase: str
    tree: DraftTree
    state: tuple[NodeState, ...]
    text: tuple[str, ...]
    p: tuple[float, ...]
    columns: tuple[tuple[int, ...], ...]
    row: tuple[int, ...]
    children: tuple[tuple[int, ...], ...]
    accepted: tuple[int, ...]
    emitted: int
    bonus: str | None
    guesses: tuple[tuple[Guess, ...], ...]
    considered: Mapping[int, int]
    note: str

    @property
    def depths(self) -> int:
        """Columns to draw beside the root's: drafted depths, or the one that holds the bonus."""
        bonus_at = len(self.accepted) if self.bonus is not None else 0
        return max(len(self.columns) - 1, len(self.guesses), bonus_at)

    @property
    def rows(self) -> int:
        """Length of the longest column."""
        filled = [len(c) for c in self.columns]
        return max(filled + [len(g) for g in self.guesses[len(self.columns) - 1 :]], default=0)

    def same_round(self, other: RoundView | None) -> bool:
        """True when `other` shows an earlier or later stage of this very round."""
        return other is not None and (self.turn, self.number) == (other.turn, other.number)

    def counts(self) -> dict[NodeState, int]:
        """Nodes by state, the root not counted, in the order of the legend."""
        out = dict.fromkeys(NODE_STATES, 0)
        for state in self.state[1:]:
            out[state] += 1
        return out


def view_of(round_: RoundLike, vocab: Words, max_guesses: int = 12) -> RoundView:
    """Lay out a round. Cost is linear in its nodes."""
    tree = round_.tree
    size = len(tree)
    columns: list[list[int]] = [[] for _ in range(max(tree.depth, default=0) + 1)]
    row = [0] * size
    children: list[list[int]] = [[] for _ in range(size)]
    for node in range(size):
        column = columns[tree.depth[node]]
        row[node] = len(column)
        column.append(node)
        if node:
            children[tree.parent[node]].append(node)
    block = round_.block if isinstance(round_, PartialRound) else None
    guesses: list[tuple[Guess, ...]] = []
    if block is not None and not judged(round_):
        for tokens, logps in zip(block.token, block.draft_logp, strict=True):
            best = list(zip(tokens, logps, strict=True))[:max_guesses]
            guesses.append(tuple(Guess(token_text(vocab, t), probability(lp)) for t, lp in best))
    bonus = round_.bonus
    accepted = tuple(round_.accepted) if judged(round_) else (0,)
    return RoundView(
        turn=round_.turn,
        number=round_.round,
        phase=phase_of(round_),
        tree=tree,
        state=states_of(round_),
        text=tuple(token_text(vocab, token) for token in tree.token),
        p=tuple(probability(logp) for logp in tree.head_logp),
        columns=tuple(map(tuple, columns)),
        row=tuple(row),
        children=tuple(map(tuple, children)),
        accepted=accepted,
        emitted=min(len(accepted) - 1, len(round_.tokens)),
        bonus=None if bonus is None else token_text(vocab, bonus),
        guesses=tuple(guesses),
        considered=dict(round_.considered) if isinstance(round_, PartialRound) else {},
        note=round_.note,
    )

"""Rounds with real words, small enough to check by eye, and one as large as they come."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from textual import on
from textual.app import App, ComposeResult
from textual.message import Message
from textual.widget import Widget

from dartree_core.events import (
    BlockDrafted,
    DepthExpanded,
    RoundDone,
    TreePruned,
    TreeVerified,
)
from dartree_core.tree import BonusFate, DraftTree, State
from dartree_tui.partial import PartialRound, StageEvent
from dartree_tui.themes import load_themes, variable_defaults
from dartree_tui.widgets.timeline import RoundSelected
from dartree_tui.widgets.tree_view import NodeOpened, NodeSelected

_WORDS = (
    " the", " cat", " dog", " man", " sat", " is", " ran", " on", " in", " by", " a", " mat",
    " box", " rug", ".", "\n", " 日本", " 🙂", "e\u0301", "\u200d",
)  # fmt: skip
VOCAB: dict[int, str | bytes] = dict(enumerate(_WORDS, start=10)) | {5: b"\xe2\x80"}
ID = {text: token for token, text in VOCAB.items()}

BETA = -0.2


@dataclass(frozen=True)
class Row:
    """A node to be: its parent's id, its token, the head's and the marginal's probability."""

    parent: int
    word: str | bytes
    head: float
    marginal: float
    target: float = 0.01


CAT: tuple[Row, ...] = (
    Row(0, " cat", 0.62, 0.40, 0.70),  # 1
    Row(0, " dog", 0.20, 0.35, 0.20),  # 2
    Row(0, " man", 0.06, 0.05, 0.02),  # 3
    Row(1, " sat", 0.55, 0.20, 0.81),  # 4
    Row(1, " is", 0.25, 0.30, 0.10),  # 5
    Row(2, " ran", 0.50, 0.10, 0.40),  # 6
    Row(4, " on", 0.48, 0.30, 0.22),  # 7
    Row(4, " in", 0.33, 0.25, 0.66),  # 8
    Row(6, " by", 0.30, 0.05, 0.05),  # 9
    Row(7, " the", 0.70, 0.50, 0.60),  # 10
    Row(8, " the", 0.66, 0.50, 0.52),  # 11
    Row(8, " a", 0.12, 0.20, 0.30),  # 12
    Row(11, " 日本", 0.30, 0.02, 0.03),  # 13
    Row(10, b"\xe2\x80", 0.20, 0.01),  # 14
)
"""Children of ' the': the target will say ' cat sat in the' and then ' box'."""


def make_round(
    rows: Sequence[Row] = CAT,
    accepted: Sequence[int] = (0, 1, 4, 8, 11),
    bonus: int | None = ID[" box"],
    fate: BonusFate | None = "not_proposed",
    budget: int = 11,
    full: bool = True,
    number: int = 16,
    note: str = "",
    cut_tokens: int | None = None,
) -> RoundDone:
    """A finished round of a tree given node by node.

    Args:
        cut_tokens: Emit only this many tokens, as when the turn ends inside the path.
    """
    n = len(rows) + 1
    parent = [-1, *(row.parent for row in rows)]
    depth, path = [0], [0.0]
    for row in rows:
        depth.append(depth[row.parent] + 1)
        path.append(path[row.parent] + math.log(row.head))
    select = [s + BETA * d for s, d in zip(path, depth, strict=True)]
    best = set(sorted(range(1, n), key=lambda i: (-select[i], i))[:budget]) | {0}

    def state(i: int) -> State:
        if i not in best:
            return "pruned"
        if i in accepted:
            return "hit"
        return "walked_past" if parent[i] in accepted else "unreached"

    token = [ID[" the"], *(ID[row.word] for row in rows)]
    columns: dict[str, Any] = {}
    if full:
        target = [1.0, *(row.target for row in rows)]
        columns = {
            "target_logp": [math.log(p) if i in best else math.nan for i, p in enumerate(target)],
            "coverage": [
                sum(target[c] for c in range(1, n) if parent[c] == i and c in best)
                if i in best
                else math.nan
                for i in range(n)
            ],
            "draft_rank": [0, *_ranks(rows, "marginal")],
            "head_rank": [0, *_ranks(rows, "head")],
            "target_rank": [0, *_ranks(rows, "target")],
        }
    tree = DraftTree(
        token=token,
        parent=parent,
        depth=depth,
        slot=[d - 1 for d in depth],
        draft_logp=[0.0, *(math.log(row.marginal) for row in rows)],
        head_logp=[0.0, *(math.log(row.head) for row in rows)],
        path_logp=path,
        select=select,
        kept=[i in best for i in range(n)],
        state=[state(i) for i in range(n)],
        **columns,
    )
    tokens = [token[i] for i in accepted[1:]] + ([] if bonus is None else [bonus])
    return RoundDone(
        turn=0,
        round=number,
        position=40,
        tree=tree,
        accepted=tuple(accepted),
        tokens=tuple(tokens[:cut_tokens]),
        provenance=tuple(["draft"] * (len(accepted) - 1) + ["bonus"] * (bonus is not None)),
        bonus=bonus,
        bonus_fate=fate if bonus is not None else None,
        text_delta="",
        span=(0, 0),
        ms={"draft": 3.1, "tree_build": 1.9, "tree_setup": 0.4, "verify": 18.2, "commit": 0.6},
        kv_length=120,
        budget=budget,
        note=note,
    )


def _ranks(rows: Sequence[Row], by: str) -> list[int]:
    """Rank of each row among its siblings."""
    return [
        1 + sum(o.parent == r.parent and getattr(o, by) > getattr(r, by) for o in rows)
        for r in rows
    ]


def plain_round(note: str = "no tree pays here") -> RoundDone:
    """A round that did not speculate."""
    return make_round((), (0,), fate="not_expanded", note=note)


def wide_round(width: int = 12, depths: int = 15) -> RoundDone:
    """`width * depths` nodes, the first column's first node followed to the end."""
    words = [w for w in _WORDS if w.strip()]
    rows: list[Row] = []
    for d in range(depths):
        for k in range(width):
            parent = 0 if d == 0 else 1 + (d - 1) * width + (k * k) % width
            # Distinct words for siblings, whatever the parent.
            rows.append(Row(parent, words[k % len(words)], 0.9 / (k + 2), 0.5 / (k + 2)))
    accepted = [0, *(1 + d * width for d in range(depths))]
    return make_round(rows, accepted, budget=width * depths)


def stage_events(done: RoundDone) -> list[StageEvent]:
    """The events that precede a round when stages are reported."""
    tree, at = done.tree, {"turn": done.turn, "round": done.round}
    levels = [tree.level(d) for d in range(1, max(tree.depth) + 1)]
    guesses = (ID[" cat"], ID[" sat"], ID[" on"], ID[" the"])
    events: list[StageEvent] = [
        BlockDrafted(
            **at,
            token=[guesses for _ in levels],
            draft_logp=[[math.log(p) for p in (0.5, 0.2, 0.1, 0.05)] for _ in levels],
        )
    ]
    for d, level in enumerate(levels, start=1):
        columns = {
            name: [getattr(tree, name)[i] for i in level]
            for name in ("token", "parent", "draft_logp", "head_logp", "path_logp")
        }
        events.append(DepthExpanded(**at, depth=d, considered=96, node=level, **columns))
    kept = [i for i, k in enumerate(tree.kept) if k]
    follows = dict(zip(done.accepted, done.accepted[1:], strict=False))
    choice = [tree.token[follows[i]] if i in follows else (done.bonus or 0) for i in kept]
    events.append(TreePruned(**at, kept=kept))
    events.append(TreeVerified(**at, node=kept, choice=choice, target_logp=[-0.5] * len(kept)))
    return events


def partial_round(done: RoundDone, stages: int) -> PartialRound:
    """The round after its first `stages` stage events."""
    part = PartialRound(done.turn, done.round, done.tree.token[0], BETA)
    for event in stage_events(done)[:stages]:
        part.apply(event)
    return part


class Stage(App[None]):
    """An app that shows one widget and remembers the messages it sends."""

    CSS = "Screen { layout: vertical; }"

    def __init__(self, widget: Widget, theme: str = "dartree-dark", **options: Any) -> None:
        super().__init__(**options)
        self.widget = widget
        self.chosen = theme
        self.seen: list[Message] = []

    @on(NodeSelected)
    @on(NodeOpened)
    @on(RoundSelected)
    def _note(self, message: Message) -> None:
        self.seen.append(message)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return dict(variable_defaults())

    def compose(self) -> ComposeResult:
        yield self.widget

    def on_mount(self) -> None:
        for theme in load_themes().themes:
            self.register_theme(theme)
        self.theme = self.chosen
        self.widget.focus()

"""A round and its tree as rich renderables, for terminals and plain pipes alike.

State is told by glyph, never by colour alone. Text from a trace only enters through
`show_token` and `show_text`, so nothing in it can steer the terminal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dartree_core.events import RoundDone
from dartree_core.glyphs import (
    FATE_WORDS,
    STATE_GLYPHS,
    STATE_GLYPHS_ASCII,
    STATE_WORDS,
    show_text,
    show_token,
)
from dartree_core.pieces import TokenText
from dartree_core.tree import DraftTree, State

ShowToken: TypeAlias = Callable[[int], str]

_COLUMNS = (
    "log-probabilities: head, corrected given the path; marginal, the drafter's own; "
    "path, head summed; key, path plus depth bonus"
)

STATE_STYLES: dict[State, str] = {
    "hit": "bold cyan",
    "walked_past": "yellow",
    "unreached": "default",
    "pruned": "dim",
}

_ROW_STYLES: dict[State, str] = {"hit": "bold", "pruned": "dim"}

_GUIDES = {"over": "│ ", "last": "└ ", "more": "├ ", "none": "  "}
_GUIDES_ASCII = {"over": "| ", "last": "` ", "more": "+ ", "none": "  "}


def token_shower(vocab: Mapping[int, TokenText]) -> ShowToken:
    """Token id to visible text; an id without one reads as `#id`."""

    def show(token: int) -> str:
        text = vocab.get(token)
        return f"#{token}" if text is None else show_token(*text)

    return show


def render_round(
    done: RoundDone, show: ShowToken, *, verified_only: bool = False, ascii_only: bool = False
) -> Group:
    """A round: what it emitted and why it stopped there, and its tree.

    Args:
        done: The round.
        show: Token id to visible text, see `token_shower`.
        verified_only: Leave out nodes that were pruned; a line says how many.
        ascii_only: Draw states and branches with ASCII characters.
    """
    tree = done.tree
    parts: list[RenderableType] = [_headline(done), _emitted(done, show)]
    if len(tree) > 1:
        parts += [Text(), _tree_table(tree, show, verified_only, ascii_only), Text()]
        ranks = "; ranks, " + "/".join(_ranks(tree)) if _ranks(tree) else ""
        parts.append(Text(_COLUMNS + ranks, "dim"))
        hidden = sum(not k for k in tree.kept)
        if verified_only and hidden:
            parts.append(Text(f"{hidden} pruned nodes not shown", "dim"))
        parts.append(_legend(tree, ascii_only))
    parts.append(_bonus(done, show))
    parts.append(_stages(done))
    return Group(*parts)


def _headline(done: RoundDone) -> Text:
    tree = done.tree
    facts = [f"position {done.position}"]
    if len(tree) > 1:
        facts.append(f"{tree.num_verified} of {len(tree) - 1} nodes verified")
        facts += [f"budget {done.budget}", f"depth {tree.height}"]
    if done.expected is not None:
        facts.append(f"expected {done.expected:.2f} tokens")
    return Text.assemble((f"turn {done.turn}  round {done.round}", "bold"), "  ", "  ".join(facts))


def _emitted(done: RoundDone, show: ShowToken) -> Text:
    drafted = sum(source == "draft" for source in done.provenance)
    text = Text(f"emitted {len(done.tokens)}: ")
    for token, source in zip(done.tokens, done.provenance, strict=True):
        text.append(show(token), STATE_STYLES["hit"] if source == "draft" else "bold underline")
        text.append(" ")
    bonus = "" if done.bonus is None else " + bonus"
    return text.append(f" (accepted {drafted}{bonus})")


def _bonus(done: RoundDone, show: ShowToken) -> Text:
    if len(done.tree) == 1:
        return Text(f"no draft: {show_text(done.note) or 'plain decoding'}")
    if done.bonus is None or done.bonus_fate is None:
        return Text("no bonus token: the turn ended before it")
    after = show(done.tree.token[done.accepted[-1]])
    text = Text("bonus ").append(show(done.bonus), "bold underline")
    return text.append(f" after {after}: the tree lacked it, {FATE_WORDS[done.bonus_fate]}")


def _stages(done: RoundDone) -> Text:
    parts = "  ".join(f"{show_text(stage)} {ms:.2f}" for stage, ms in done.ms.items())
    return Text(f"ms  {parts}  total {sum(done.ms.values()):.2f}")


def _legend(tree: DraftTree, ascii_only: bool) -> Text:
    glyphs = STATE_GLYPHS_ASCII if ascii_only else STATE_GLYPHS
    text = Text()
    drafted = tree.state[1:]  # the root was not up for a decision
    for state, glyph in glyphs.items():
        text.append(f"{glyph} {STATE_WORDS[state]} {drafted.count(state)}", STATE_STYLES[state])
        text.append("   ")
    cut = tree.cut()
    text.append("nothing was pruned" if cut is None else f"smallest key kept {_number(cut)}")
    return text


def _ranks(tree: DraftTree) -> dict[str, Sequence[int]]:
    """The ranks the tree has, by who ranked."""
    ranks = {"head": tree.head_rank, "marginal": tree.draft_rank, "target": tree.target_rank}
    return {name: rank for name, rank in ranks.items() if rank is not None}


def _tree_table(tree: DraftTree, show: ShowToken, verified_only: bool, ascii_only: bool) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("node")
    columns: dict[str, Sequence[float]] = {
        "head": tree.head_logp,
        "marginal": tree.draft_logp,
        "path": tree.path_logp,
        "key": tree.select,
    }
    if tree.target_logp is not None:
        columns["target"] = tree.target_logp
    if tree.coverage is not None:
        columns["coverage"] = tree.coverage
    ranks = list(_ranks(tree).values())
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    if ranks:
        table.add_column("ranks", justify="right", no_wrap=True)
    glyphs = STATE_GLYPHS_ASCII if ascii_only else STATE_GLYPHS
    for node, guides in walk(tree, verified_only, ascii_only):
        style = STATE_STYLES[tree.state[node]]
        label = Text(no_wrap=True, overflow="crop" if ascii_only else "ellipsis")
        label.append(guides, "dim")
        label.append(f"{glyphs[tree.state[node]]} {show(tree.token[node])}", style)
        cells = [
            "" if node == 0 and name != "coverage" else _number(column[node])
            for name, column in columns.items()
        ]
        if ranks:
            cells.append("" if node == 0 else "/".join(str(r[node] or "-") for r in ranks))
        table.add_row(label, *cells, style=_ROW_STYLES.get(tree.state[node], ""))
    return table


def walk(
    tree: DraftTree, verified_only: bool = False, ascii_only: bool = False
) -> Iterator[tuple[int, str]]:
    """Nodes in depth-first order, best path first among siblings, each with its branch lines."""
    guides = _GUIDES_ASCII if ascii_only else _GUIDES
    below: dict[int, list[int]] = {}
    for i in range(1, len(tree)):
        if tree.kept[i] or not verified_only:
            below.setdefault(tree.parent[i], []).append(i)
    for siblings in below.values():
        siblings.sort(key=lambda i: tree.state[i] != "hit")  # the accepted path stays together
    stack = [(0, "", "")]
    while stack:
        node, own, indent = stack.pop()
        yield node, own
        siblings = below.get(node, [])
        for child in reversed(siblings):
            last = child == siblings[-1]
            own_guides = indent + guides["last" if last else "more"]
            stack.append((child, own_guides, indent + guides["none" if last else "over"]))


def _number(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "-"

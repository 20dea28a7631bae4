"""Everything known about one node, in numbers, bars and words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.style import Style
from rich.text import Text
from textual.geometry import Size

from dartree_core.tree import DraftTree
from dartree_tui.palette import Palette
from dartree_tui.vocab import Words
from dartree_tui.widgets.explain import MORE_DETAIL, headline, why, why_bonus
from dartree_tui.widgets.figures import UNKNOWN, bar, gain, prob, rank, signed
from dartree_tui.widgets.panel import TextPanel
from dartree_tui.widgets.rounds import (
    BONUS,
    GLYPHS,
    WORDS,
    RoundLike,
    judged,
    probability,
    states_of,
    token_text,
)

_LABEL = 10


class NodeInspector(TextPanel):
    """Pane about the selected node or the bonus token.

    Shows the round in a sentence while nothing is selected.
    """

    HINT = "Select a node with the arrow keys or the mouse to see why it was kept or lost."

    _round: RoundLike | None = None
    _node: int | None = None
    _vocab: Words = {}  # noqa: RUF012 - a read-only default

    def show(self, round_: RoundLike | None, node: int | None, vocab: Words) -> None:
        """Show a node of a round; `BONUS` for its bonus token, None for the round itself."""
        self._round, self._node, self._vocab = round_, node, vocab
        self.rewrite()

    def show_bonus(self, round_: RoundLike, vocab: Words) -> None:
        """Show the round's bonus token."""
        self.show(round_, BONUS, vocab)

    def write(self, size: Size, palette: Palette) -> Text:
        """See `TextPanel.write`."""
        if self._round is None:
            return Text("No round yet.", palette.dim)
        node = self._node
        if node is None or node >= len(self._round.tree):
            text = Text(headline(self._round, self._vocab) + "\n\n", palette.text)
            return text.append(self.HINT, palette.dim)
        return describe(self._round, node, self._vocab, size.width, palette)


def describe(round_: RoundLike, node: int, vocab: Words, width: int, palette: Palette) -> Text:
    """The pane's text about a node or, for `BONUS`, the bonus token.

    Args:
        width: Cells of the pane; long sentences wrap, bars shrink.
    """
    if node == BONUS:
        return _describe_bonus(round_, vocab, palette)
    tree = round_.tree
    state = states_of(round_)[node]
    text = Text()
    text.append(f"{GLYPHS[state]} {token_text(vocab, tree.token[node])}", palette.state[state])
    text.append(f"  id {tree.token[node]}  {WORDS[state] if node else 'root'}\n", palette.dim)
    if node:
        parent = tree.parent[node]
        text.append(f"depth {tree.depth[node]}, slot {tree.slot[node]}, after ", palette.dim)
        text.append(f"{token_text(vocab, tree.token[parent])}\n", palette.text)
        _scores(text, tree, node, width, palette)
        _target(text, round_, node, width, palette)
    elif tree.coverage is not None and not math.isnan(tree.coverage[0]):
        _coverage(text, tree, 0, "children", width, palette)
    text.append("\n")
    _advice(text, why(round_, node, vocab), palette)
    return text


def _describe_bonus(round_: RoundLike, vocab: Words, palette: Palette) -> Text:
    text = Text()
    if round_.bonus is not None:
        text.append(f"{GLYPHS['bonus']} {token_text(vocab, round_.bonus)}", palette.state["bonus"])
        text.append(f"  id {round_.bonus}  bonus token\n", palette.dim)
        text.append(f"depth {len(round_.accepted)}, after ", palette.dim)
        last = round_.tree.token[round_.accepted[-1]]
        text.append(f"{token_text(vocab, last)}\n\n", palette.text)
    _advice(text, why_bonus(round_, vocab), palette)
    return text


def _advice(text: Text, words: str, palette: Palette) -> None:
    """The sentences, with the hint about more detail set apart."""
    text.append(words.removesuffix(MORE_DETAIL).rstrip(), palette.text)
    if words.endswith(MORE_DETAIL):
        text.append(f"\n{MORE_DETAIL}", palette.dim)


def _scores(text: Text, tree: DraftTree, node: int, width: int, palette: Palette) -> None:
    head, draft = tree.head_logp[node], tree.draft_logp[node]
    accent, plain = palette.accent, palette.dim
    _row(text, "AR head", head, _rank(tree.head_rank, node), width, accent, palette)
    _row(text, "marginal", draft, _rank(tree.draft_rank, node), width, plain, palette)
    made = head - draft
    if not math.isnan(made):
        factor = math.exp(min(abs(made), 40.0))
        word = "likelier" if made >= 0 else "less likely"
        times = f"{factor:.1f}×" if factor < 1000 else ">1000×"
        said = "the path changed nothing" if factor < 1.05 else f"the path made it {times} {word}"
        _label(text, "", palette)
        text.append(f"{gain(made):>6}  {said}\n", palette.text)
    _label(text, "path", palette)
    text.append(f"{signed(tree.path_logp[node]):>6}", palette.text)
    cut = tree.cut()
    if cut is None:
        text.append("  nothing was pruned\n", palette.dim)
        return
    key = tree.select[node]
    kept = tree.kept[node]
    style = palette.text if kept else palette.state["pruned"]
    text.append(f"  key {signed(key)}  cut {signed(cut)}  ", palette.dim)
    text.append(f"{'kept by' if kept else 'missed by'} {signed(abs(key - cut))}\n", style)


def _target(text: Text, round_: RoundLike, node: int, width: int, palette: Palette) -> None:
    tree = round_.tree
    if tree.target_logp is None:
        return
    value = tree.target_logp[node]
    if not judged(round_) or math.isnan(value):
        _label(text, "target", palette)
        unknown = "never scored it" if judged(round_) else "…"
        text.append(f"{UNKNOWN:>6}  {unknown}\n", palette.dim)
    else:
        style = palette.state["hit"]
        _row(text, "target", value, _rank(tree.target_rank, node), width, style, palette)
    if tree.coverage is not None:
        _coverage(text, tree, tree.parent[node], "siblings", width, palette)
        _coverage(text, tree, node, "children", width, palette)


def _coverage(
    text: Text, tree: DraftTree, node: int, what: str, width: int, palette: Palette
) -> None:
    """How much of the target's mass after `node` its verified children hold."""
    assert tree.coverage is not None
    share = tree.coverage[node]
    if math.isnan(share) or (what == "children" and node not in tree.parent):
        return
    _label(text, "coverage", palette)
    said = f"target mass on kept {what}"
    text.append(" " * 8, palette.dim)
    text.append(f"{prob(share):<6}", palette.text)
    text.append(f"{said if _LABEL + 14 + len(said) <= width else f'on {what}'}\n", palette.dim)


def _row(
    text: Text, label: str, logp: float, rank_: str, width: int, style: Style, palette: Palette
) -> None:
    """`AR head   −0.21  .811  rank 1   ▇▇▇▇`."""
    _label(text, label, palette)
    p = probability(logp)
    text.append(f"{signed(logp):>6}  ", palette.dim)
    text.append(f"{prob(p):<6}", palette.text)
    text.append(f"{rank_:<9}", palette.dim)
    text.append(bar(p, min(20, width - _LABEL - 24)) + "\n", style)


def _label(text: Text, label: str, palette: Palette) -> None:
    text.append(f"{label:<{_LABEL}}", palette.dim)


def _rank(column: Sequence[int] | None, node: int) -> str:
    return "" if column is None else rank(column[node])

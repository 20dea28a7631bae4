"""In words: why a node was accepted, passed over or pruned, and why the tree lacked the bonus.

Pure functions of a round (see `rounds.RoundLike`), so that panes, exports and tests say the same.
"""

from __future__ import annotations

import math

from dartree_core.tree import DraftTree
from dartree_tui.vocab import Words
from dartree_tui.widgets.figures import prob, signed
from dartree_tui.widgets.rounds import (
    RoundLike,
    judged,
    phase_of,
    probability,
    states_of,
    token_text,
)

MORE_DETAIL = "Record with --detail full to see the target's view."


def why(round_: RoundLike, node: int, vocab: Words) -> str:
    """What became of a node of the round's tree, and why, in one to three sentences."""
    tree = round_.tree
    text = _quoted(tree, node, vocab)
    if node == 0:
        return (
            f"The root, {text}, was part of the answer before this round began: the target chose "
            "it last. Every branch continues from it."
        )
    state = states_of(round_)[node]
    if state == "candidate":
        return _candidate(round_, node, vocab)
    if state == "pruned":
        return _pruned(round_, node, vocab)
    if state == "hit":
        return _hit(round_, node, vocab)
    if state == "walked_past":
        return _walked_past(round_, node, vocab)
    return _unreached(round_, node, vocab)


def why_bonus(round_: RoundLike, vocab: Words) -> str:
    """Where the bonus token comes from, and why the tree did not hold it."""
    if not judged(round_):
        return "The target has not scored the tree yet; its bonus token is still open."
    if round_.bonus is None:
        return "This round has no bonus token: the answer ended inside the accepted path."
    tree = round_.tree
    bonus = f"‘{token_text(vocab, round_.bonus)}’"
    last = round_.accepted[-1]
    lead = f"After {_quoted(tree, last, vocab)} the target itself chose {bonus}. "
    if len(tree) == 1:
        reason = round_.note or "no tree was drafted"
        return f"{lead}This round did not speculate ({reason}), so it is the only token."
    return lead + _fate(round_, last, bonus)


def headline(round_: RoundLike, vocab: Words) -> str:
    """The round in one line, for a title: what was accepted, and the bonus token."""
    tree = round_.tree
    number = len(tree) - 1
    if not judged(round_):
        pruned = number - tree.num_verified
        return {
            "draft": "the drafter guesses a whole block at once, each slot blind to the others",
            "prune": f"pruned: {tree.num_verified} of {number} nodes go to the target",
        }.get(
            phase_of(round_),
            f"depth {max(tree.depth)}: {number} candidates, scored along their own paths"
            + (f", {pruned} pruned" if pruned else ""),
        )
    bonus = "" if round_.bonus is None else f" + bonus ‘{token_text(vocab, round_.bonus)}’"
    if number == 0:
        return f"no speculation{': ' + round_.note if round_.note else ''}{bonus}"
    return f"accepted {len(round_.accepted) - 1} of {tree.height} depths{bonus}"


def _quoted(tree: DraftTree, node: int, vocab: Words) -> str:
    return f"‘{token_text(vocab, tree.token[node])}’"


def _choice_after(round_: RoundLike, node: int) -> int | None:
    """The token the target chose after a node of the accepted path."""
    accepted = list(round_.accepted)
    at = accepted.index(node)
    if at + 1 < len(accepted):
        return round_.tree.token[accepted[at + 1]]
    return round_.bonus


def _odds(tree: DraftTree, node: int) -> str:
    """What the target thought of a node: ` (p .120, rank 2)`; empty at basic detail."""
    if tree.target_logp is None or math.isnan(tree.target_logp[node]):
        return ""
    p = probability(tree.target_logp[node])
    rank = tree.target_rank[node] if tree.target_rank is not None else 0
    return f" (p {prob(p)}, rank {rank})" if rank else f" (p {prob(p)})"


def _detail_hint(tree: DraftTree) -> str:
    return f" {MORE_DETAIL}" if tree.target_logp is None else ""


def _candidate(round_: RoundLike, node: int, vocab: Words) -> str:
    tree = round_.tree
    parent = _quoted(tree, tree.parent[node], vocab)
    if phase_of(round_) == "prune":
        return (
            f"Kept by the pruning; the target is about to score it after {parent} in one pass "
            "together with all other kept nodes."
        )
    return (
        f"A candidate: the head gives it p {prob(probability(tree.head_logp[node]))} after "
        f"{parent}. Nothing has been pruned or verified yet."
    )


def _hit(round_: RoundLike, node: int, vocab: Words) -> str:
    tree = round_.tree
    parent = _quoted(tree, tree.parent[node], vocab)
    said = (
        f"Accepted: after {parent} the target's own choice was this token{_odds(tree, node)}, "
        "and the tree already held it."
    )
    if tree.depth[node] > len(round_.tokens):
        said += " It is not in the answer, which ended before it."
    return said + _detail_hint(tree)


def _walked_past(round_: RoundLike, node: int, vocab: Words) -> str:
    tree = round_.tree
    parent = tree.parent[node]
    after = f"after {_quoted(tree, parent, vocab)} the target"
    if parent not in round_.accepted:
        return f"Walked past: verified, but {after} chose another token.{_detail_hint(tree)}"
    choice = _choice_after(round_, parent)
    if choice is None:
        return (
            f"Walked past: the answer ended at {_quoted(tree, parent, vocab)}, before the target's "
            "next choice counted."
        )
    chosen = f"‘{token_text(vocab, choice)}’"
    if parent == round_.accepted[-1]:
        chosen = f"the bonus token {chosen}, which the tree lacked,"
    else:
        winner = round_.accepted[list(round_.accepted).index(parent) + 1]
        chosen += _odds(tree, winner)
    return (
        f"Walked past: {after} chose {chosen} instead of this token{_odds(tree, node)}."
        f"{_detail_hint(tree)}"
    )


def _unreached(round_: RoundLike, node: int, vocab: Words) -> str:
    tree = round_.tree
    accepted = set(round_.accepted)
    turn = next(i for i in tree.path(node) if i not in accepted)
    where = f"{_quoted(tree, turn, vocab)} at depth {tree.depth[turn]}"
    if turn == node:
        return "Unreached: verified, but the answer ended before the walk came here."
    said = (
        f"Unreached: the target left this branch at {where}, so what follows there no longer "
        "mattered, however likely it was."
    )
    return said + _detail_hint(tree)


def _pruned(round_: RoundLike, node: int, vocab: Words) -> str:
    tree = round_.tree
    cut = tree.cut()
    key = tree.select[node]
    if cut is not None and key < cut:
        said = (
            f"Pruned: its key {signed(key)} (path score and depth bonus) fell {signed(cut - key)} "
            f"below the cut {signed(cut)}, so the target never scored it."
        )
    elif cut is not None and key == cut:
        said = f"Pruned: its key {signed(key)} tied with the cut, and ties keep the earlier node."
    else:
        said = "Pruned: built, but not among the nodes sent to the target."
    parent = tree.parent[node]
    if (
        judged(round_)
        and round_.bonus is not None
        and parent == round_.accepted[-1]
        and tree.token[node] == round_.bonus
    ):
        said += " It would have been accepted: the target chose just this token as the bonus."
    elif judged(round_) and parent not in round_.accepted:
        said += " Verifying it would have changed nothing: the target left this branch earlier."
    return said


def _fate(round_: RoundLike, last: int, bonus: str) -> str:
    tree = round_.tree
    depth = tree.depth[last] + 1
    match round_.bonus_fate:
        case "not_proposed":
            return (
                f"The tree lacked it because the drafter did not propose it there: {bonus} is not "
                f"among the candidates of slot {depth - 1}. More candidates could help."
            )
        case "level_pruned":
            worst = _worst_of_level(tree, depth)
            return (
                f"It was a candidate, but lost the selection at depth {depth}: only the best path "
                f"scores of a depth stay{worst}. A larger width could help."
            )
        case "final_pruned":
            node = next(
                (
                    i
                    for i in range(1, len(tree))
                    if tree.parent[i] == last and tree.token[i] == round_.bonus
                ),
                None,
            )
            key = ""
            cut = tree.cut()
            if node is not None and cut is not None:
                key = (
                    f": its key {signed(tree.select[node])} is {signed(cut - tree.select[node])} "
                    f"below the cut {signed(cut)}"
                )
            return f"It was in the supertree, but pruned{key}. A larger budget would have kept it."
        case "not_expanded":
            if depth > max(tree.depth):
                return (
                    "The tree ends there: the whole depth was accepted, and this token comes on "
                    "top of it."
                )
            return f"Nothing was grown below {_place(depth - 1)} on this path."
        case _:
            return "It comes free with every verification."


def _place(depth: int) -> str:
    return "the root" if depth == 0 else f"depth {depth}"


def _worst_of_level(tree: DraftTree, depth: int) -> str:
    scores = [tree.path_logp[i] for i in tree.level(depth)]
    return f", the last at {signed(min(scores))}" if scores else ""

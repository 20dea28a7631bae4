from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console, RenderableType

from dartree_core.events import RoundDone
from dartree_core.glyphs import FATE_WORDS, STATE_GLYPHS, STATE_GLYPHS_ASCII, show_token
from dartree_core.pieces import TokenText
from dartree_core.render import render_round, token_shower, walk
from dartree_core.tree import DraftTree
from tests.core.strategies import VOCAB_SIZE, rounds, token_text, trees

VOCAB = {i: token_text(i) for i in range(VOCAB_SIZE)}
SHOW = token_shower(VOCAB)


def plain(renderable: RenderableType, width: int = 200) -> str:
    out = StringIO()
    Console(file=out, width=width, color_system=None).print(renderable)
    return out.getvalue()


def node_lines(text: str) -> list[str]:
    """The lines of the tree itself, up to the blank line after it."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("node")) + 1
    end = next(i for i in range(start, len(lines)) if not lines[i].strip())
    return lines[start:end]


SMALL = RoundDone(
    turn=1,
    round=17,
    position=42,
    tree=DraftTree(
        token=(0, 1, 2, 3, 4, 5),
        parent=(-1, 0, 0, 1, 1, 2),
        depth=(0, 1, 1, 2, 2, 2),
        slot=(-1, 0, 0, 1, 1, 1),
        draft_logp=(0.0, -0.5, -1.25, -2.0, -3.0, -1.0),
        head_logp=(0.0, -0.25, -1.5, -0.5, -4.0, -0.125),
        path_logp=(0.0, -0.25, -1.5, -0.75, -4.25, -1.625),
        select=(0.0, -0.45, -1.7, -1.15, -4.65, -2.025),
        kept=(True, True, True, True, False, True),
        state=("hit", "hit", "walked_past", "hit", "pruned", "unreached"),
    ),
    accepted=(0, 1, 3),
    tokens=(1, 3, 6),
    provenance=("draft", "draft", "bonus"),
    bonus=6,
    bonus_fate="not_expanded",
    text_delta="",
    span=(0, 0),
    ms={"draft": 1.0, "verify": 10.5},
    kv_length=45,
    budget=4,
    expected=2.5,
)
NAMES = {
    i: TokenText(t) for i, t in enumerate(["root", " cat", " dog", " sat", "\n", " is", " on"])
}


def test_a_small_round_in_full() -> None:
    text = plain(render_round(SMALL, token_shower(NAMES)))
    lines = [line.rstrip() for line in text.splitlines()]
    assert lines == [
        "turn 1  round 17  position 42  4 of 5 nodes verified  budget 4  depth 2  "
        "expected 2.50 tokens",
        "emitted 3: ␣cat ␣sat ␣on  (accepted 2 + bonus)",
        "",
        "node         head  marginal   path    key",
        "● root",
        "├ ● ␣cat    -0.25     -0.50  -0.25  -0.45",
        "│ ├ ● ␣sat  -0.50     -2.00  -0.75  -1.15",
        "│ └ × ↵     -4.00     -3.00  -4.25  -4.65",
        "└ ○ ␣dog    -1.50     -1.25  -1.50  -1.70",
        "  └ · ␣is   -0.12     -1.00  -1.62  -2.02",
        "",
        "log-probabilities: head, corrected given the path; marginal, the drafter's own; "
        "path, head summed; key, path plus depth bonus",
        "● hit 2   ○ walked past 1   · unreached 1   × pruned 1   smallest key kept -2.02",
        "bonus ␣on after ␣sat: the tree lacked it, the tree did not go on below its parent",
        "ms  draft 1.00  verify 10.50  total 11.50",
    ]


@pytest.mark.parametrize("fate", FATE_WORDS)
def test_every_fate_is_told_in_words(fate: str) -> None:
    text = plain(render_round(replace(SMALL, bonus_fate=fate), SHOW))  # type: ignore[arg-type]
    assert FATE_WORDS[fate] in text  # type: ignore[index]


def test_a_round_cut_by_the_end_of_its_turn() -> None:
    done = replace(SMALL, tokens=(1,), provenance=("draft",), bonus=None, bonus_fate=None)
    text = plain(render_round(done, SHOW))
    assert "emitted 1" in text
    assert "(accepted 1)" in text
    assert "no bonus token: the turn ended before it" in text


def test_a_round_without_a_draft_says_why() -> None:
    root = DraftTree((7,), (-1,), (0,), (-1,), (0.0,), (0.0,), (0.0,), (0.0,), (True,), ("hit",))
    done = replace(
        SMALL,
        tree=root,
        accepted=(0,),
        tokens=(6,),
        provenance=("bonus",),
        bonus_fate=None,
        note="no tree pays \x1b[31m",
    )
    text = plain(render_round(done, SHOW))
    assert "no draft: no tree pays ␛[31m" in text
    assert "node" not in text


@given(rounds())
def test_every_node_has_one_line_with_its_glyph_and_its_text(done: RoundDone) -> None:
    text = plain(render_round(done, SHOW))
    if len(done.tree) == 1:
        return
    lines = node_lines(text)
    order = [node for node, _ in walk(done.tree)]
    assert sorted(order) == list(range(len(done.tree)))
    for node, line in zip(order, lines, strict=True):
        mark = f"{STATE_GLYPHS[done.tree.state[node]]} {show_token(*VOCAB[done.tree.token[node]])}"
        assert line[2 * done.tree.depth[node] :].startswith(mark)


@given(rounds())
def test_pruned_nodes_can_be_left_out(done: RoundDone) -> None:
    text = plain(render_round(done, SHOW, verified_only=True))
    kept = [i for i, k in enumerate(done.tree.kept) if k]
    if len(done.tree) > 1:
        assert len(node_lines(text)) == len(kept)
    assert [n for n, _ in walk(done.tree, verified_only=True)] == [
        n for n, _ in walk(done.tree) if n in kept
    ]
    hidden = len(done.tree) - len(kept)
    assert (f"{hidden} pruned nodes not shown" in text) == (hidden > 0)


@given(trees())
def test_a_node_follows_its_parent_and_the_accepted_path_comes_first(tree: DraftTree) -> None:
    order = [node for node, _ in walk(tree)]
    for i in range(1, len(tree)):
        assert order.index(tree.parent[i]) < order.index(i)
    hits = [i for i, state in enumerate(tree.state) if state == "hit"]
    assert order[: len(hits)] == hits


@given(trees())
def test_branches_meet_what_is_below_them(tree: DraftTree) -> None:
    """Every branch line leads on in the next line, down to the child it belongs to."""
    rows = [guides for _, guides in walk(tree)]
    for above, below in pairwise(rows):
        for column, char in enumerate(above):
            if char in "│├":
                assert below[column : column + 1] in ("│", "├", "└")
    assert not any("├" in guides or "│" in guides for guides in rows[-1:])


@given(rounds(), st.integers(20, 130))
def test_nothing_is_wider_than_the_terminal(done: RoundDone, width: int) -> None:
    for line in plain(render_round(done, SHOW), width).splitlines():
        assert cell_len(line) <= width


@given(rounds(full=True))
def test_full_detail_adds_what_the_target_said(done: RoundDone) -> None:
    text = plain(render_round(done, SHOW))
    if len(done.tree) > 1:
        assert re.search(r"^node .* target +coverage +ranks", text, re.MULTILINE)
        assert "ranks, head/marginal/target" in text
        assert len(re.findall(r" \d+/\d+/\d+", text)) >= len(done.tree) - 1
        assert "nan" not in text


@given(rounds())
def test_without_utf8_states_and_branches_are_ascii(done: RoundDone) -> None:
    text = plain(render_round(done, lambda token: f"t{token}", ascii_only=True))
    assert text.isascii()
    for state in set(done.tree.state) if len(done.tree) > 1 else ():
        assert STATE_GLYPHS_ASCII[state] in text


def test_unknown_ids_read_as_numbers() -> None:
    assert token_shower({})(123) == "#123"
    assert token_shower({123: TokenText("\ufffd", b"\xe2")})(123) == "‹E2›"

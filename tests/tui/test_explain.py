from __future__ import annotations

import pytest
from hypothesis import given

from dartree_tui.widgets.explain import MORE_DETAIL, headline, why, why_bonus
from tests.core.strategies import rounds
from tests.tui.samples import ID, VOCAB, make_round, partial_round, plain_round
from tests.tui.test_rounds import PIECES


@pytest.fixture
def done():
    return make_round()


def test_root(done):
    assert why(done, 0, VOCAB).startswith("The root, ‘␣the’, was part of the answer before")


def test_hit(done):
    assert why(done, 4, VOCAB) == (
        "Accepted: after ‘␣cat’ the target's own choice was this token (p .810, rank 1), and the "
        "tree already held it."
    )


def test_walked_past_a_choice_the_tree_held(done):
    assert why(done, 7, VOCAB) == (
        "Walked past: after ‘␣sat’ the target chose ‘␣in’ (p .660, rank 1) instead of this token "
        "(p .220, rank 2)."
    )


def test_walked_past_for_the_bonus():
    done = make_round(accepted=(0, 1), bonus=ID[" on"])
    assert "chose the bonus token ‘␣on’, which the tree lacked, instead" in why(done, 4, VOCAB)


def test_unreached(done):
    assert done.tree.state[9] == "unreached"
    assert why(done, 9, VOCAB) == (
        "Unreached: the target left this branch at ‘␣dog’ at depth 1, so what follows there no "
        "longer mattered, however likely it was."
    )


def test_pruned_in_vain(done):
    said = why(done, 14, VOCAB)
    assert "its key −4.78 (path score and depth bonus) fell 0.67 below the cut −4.11" in said
    assert said.endswith("the target left this branch earlier.")


def test_pruned_though_right():
    done = make_round(accepted=(0, 1, 4, 8), bonus=ID[" a"], fate="final_pruned")
    assert done.tree.state[12] == "pruned"
    said = why(done, 12, VOCAB)
    assert said.endswith(
        "It would have been accepted: the target chose just this token as the bonus."
    )
    assert "A larger budget would have kept it" in why_bonus(done, VOCAB)
    assert "its key −5.10 is 1.00 below the cut −4.11" in why_bonus(done, VOCAB)


@pytest.mark.parametrize(
    ("fate", "words"),
    [
        ("not_proposed", "‘␣box’ is not among the candidates of slot 4"),
        ("level_pruned", "lost the selection at depth 5"),
        ("not_expanded", "Nothing was grown below depth 4 on this path"),
    ],
)
def test_every_fate_of_the_bonus_token(fate, words):
    assert words in why_bonus(make_round(fate=fate), VOCAB)


def test_a_tree_accepted_to_its_end():
    done = make_round(accepted=(0, 1, 4, 7, 10, 14), budget=14, fate="not_expanded")
    assert "the whole depth was accepted" in why_bonus(done, VOCAB)


def test_an_answer_that_ends_inside_the_path():
    done = make_round(bonus=None, cut_tokens=2)
    assert "the answer ended" in why_bonus(done, VOCAB)
    assert "It is not in the answer, which ended before it." in why(done, 8, VOCAB)
    assert "not in the answer" not in why(done, 4, VOCAB)
    whole = make_round(bonus=None, budget=14)
    assert whole.tree.state[13] == "walked_past"
    assert "the answer ended at ‘␣the’" in why(whole, 13, VOCAB)


def test_a_round_without_a_tree():
    done = plain_round()
    assert "did not speculate (no tree pays here)" in why_bonus(done, VOCAB)
    assert headline(done, VOCAB) == "no speculation: no tree pays here + bonus ‘␣box’"


def test_basic_detail_says_how_to_learn_more():
    done = make_round(full=False)
    for node in (4, 7, 9):
        assert why(done, node, VOCAB).endswith(MORE_DETAIL)
    assert MORE_DETAIL not in why(make_round(), 4, VOCAB)


def test_rounds_under_way():
    done = make_round()
    assert "the head gives it p .620 after ‘␣the’" in why(partial_round(done, 2), 1, VOCAB)
    assert "about to score it" in why(partial_round(done, 7), 1, VOCAB)
    assert why(partial_round(done, 7), 14, VOCAB).startswith("Pruned")
    assert "still open" in why_bonus(partial_round(done, 7), VOCAB)
    assert [headline(partial_round(done, n), VOCAB)[:12] for n in (1, 3, 7, 8)] == [
        "the drafter ",
        "depth 2: 6 c",
        "pruned: 11 o",
        "accepted 4 o",
    ]


@given(rounds())
def test_every_node_of_any_round_has_a_reason(done):
    said = [why(done, node, PIECES) for node in range(len(done.tree))]
    said += [why_bonus(done, PIECES), headline(done, PIECES)]
    for text in said:
        assert text
        assert "nan" not in text
        assert "None" not in text
    for text in said[:-1]:
        assert text.endswith((".", "!"))

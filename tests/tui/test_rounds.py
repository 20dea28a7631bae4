from __future__ import annotations

from hypothesis import given

from dartree_tui.widgets.rounds import states_of, token_text, view_of
from tests.core.strategies import VOCAB_SIZE, rounds
from tests.core.strategies import token_text as piece
from tests.tui.samples import VOCAB, make_round, partial_round

PIECES: dict[int, str | bytes] = {t: piece(t).raw or piece(t).text for t in range(VOCAB_SIZE)}


@given(rounds())
def test_every_node_has_one_place_under_its_parent(done):
    view = view_of(done, PIECES)
    tree = done.tree
    placed = [node for column in view.columns for node in column]
    assert sorted(placed) == list(range(len(tree)))
    for depth, column in enumerate(view.columns):
        for row, node in enumerate(column):
            assert (tree.depth[node], view.row[node]) == (depth, row)
    for node in range(1, len(tree)):
        assert node in view.children[tree.parent[node]]
    assert sum(view.counts().values()) == len(tree) - 1
    assert view.rows >= 1


def test_nothing_is_judged_before_the_target_has_spoken():
    done = make_round()
    grown = partial_round(done, 3)
    assert set(states_of(grown)[1:]) == {"candidate"}
    pruned = partial_round(done, 7)
    assert states_of(pruned).count("pruned") == 3
    assert view_of(pruned, VOCAB).accepted == (0,)
    assert states_of(partial_round(done, 8)) == tuple(done.tree.state)


def test_guesses_fill_only_slots_without_nodes():
    view = view_of(partial_round(make_round(), 2), VOCAB)
    assert [len(c) for c in view.columns] == [1, 3]
    assert view.guesses[1][0].text == "␣cat"
    assert view.depths == 5
    assert not view_of(make_round(), VOCAB).guesses


def test_the_bonus_adds_a_column_when_the_whole_depth_was_accepted():
    rows = make_round().tree
    assert max(rows.depth) == 5
    full = make_round(accepted=(0, 1, 4, 7, 10, 14), budget=14)
    assert view_of(full, VOCAB).depths == 6


def test_tokens_without_a_text_show_their_id():
    assert token_text({}, 7) == "#7"
    assert token_text({7: b"\xe2\x80"}, 7) == "‹E2 80›"

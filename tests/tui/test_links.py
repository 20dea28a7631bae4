from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dartree_tui.widgets.links import DOWN, LEFT, RIGHT, UP, character, route


@pytest.mark.parametrize(
    ("links", "drawn"),
    [
        ([(1, 1)], " ─ "),
        ([(0, 2)], "╮│╰"),
        ([(2, 0)], "╭│╯"),
        ([(0, 0), (0, 1), (0, 2)], "┬├╰"),
        ([(1, 0), (1, 2)], "╭┤╰"),
        ([(1, 0), (1, 1), (1, 2)], "╭┼╰"),
    ],
)
def test_lines_join_parents_and_children(links, drawn):
    cells = route(links)
    assert "".join(character(cells.get(row, 0), heavy=False) for row in range(3)) == drawn


def test_heavy_lines_have_the_same_shape():
    assert [character(d, heavy=True) for d in (LEFT | RIGHT, LEFT | DOWN, UP | RIGHT)] == [
        "━",
        "┓",
        "┗",
    ]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=8))
def test_no_line_ends_in_the_air(links):
    cells = route(links)
    for row, directions in cells.items():
        assert bool(directions & UP) == bool(cells.get(row - 1, 0) & DOWN)
        assert bool(directions & DOWN) == bool(cells.get(row + 1, 0) & UP)
        assert bool(directions & LEFT) == any(start == row for start, _ in links)
        assert bool(directions & RIGHT) == any(end == row for _, end in links)

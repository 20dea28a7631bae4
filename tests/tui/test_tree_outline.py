from __future__ import annotations

import pytest
from hypothesis import given

from dartree_tui.widgets.rounds import BONUS, view_of
from dartree_tui.widgets.tree_outline import TreeOutline, preorder
from tests.core.strategies import rounds
from tests.tui.samples import VOCAB, Stage, make_round, partial_round, wide_round
from tests.tui.test_rounds import PIECES


@pytest.mark.parametrize("size", [(100, 20), (50, 12), (34, 10)], ids=str)
async def test_a_finished_round(size, snapshot):
    app = Stage(TreeOutline())
    async with app.run_test(size=size) as pilot:
        app.widget.show_round(make_round(), VOCAB)
        await pilot.pause()
        snapshot(app, f"tree_outline_{size[0]}x{size[1]}")


async def test_basic_detail_and_growth():
    app = Stage(TreeOutline())
    async with app.run_test(size=(100, 20)) as pilot:
        outline = app.widget
        outline.show_round(make_round(full=False), VOCAB)
        await pilot.pause()
        assert ".620" in outline.render_line(2).text
        outline.show_round(partial_round(make_round(number=3), 3), VOCAB)
        await pilot.pause()
        lines = [outline.render_line(y).text.strip() for y in range(1, 9)]
        assert sum("◌" in text for text in lines) == 6
        assert not lines[-1]


@given(rounds())
def test_every_node_has_one_line_after_its_parents(done):
    view = view_of(done, PIECES)
    order = preorder(view)
    place = {node: line for line, node in enumerate(order)}
    assert sorted(place) == list(range(-1 if view.bonus is not None else 0, len(done.tree)))
    for node in range(1, len(done.tree)):
        assert place[done.tree.parent[node]] < place[node]
    if view.bonus is not None:
        assert place[BONUS] == place[view.accepted[-1]] + 1


async def test_keys_walk_lines_and_links():
    app = Stage(TreeOutline())
    async with app.run_test(size=(100, 20)) as pilot:
        outline = app.widget
        outline.show_round(make_round(), VOCAB)
        walked = []
        for key in ["home", "j", "j", "h", "end", "k", "g"]:
            await pilot.press(key)
            walked.append(outline.node)
        # The first key starts where the acceptance ended; the bonus token follows it.
        assert walked == [11, BONUS, 13, 11, 3, 9, 0]


async def test_clicks_select_the_line():
    app = Stage(TreeOutline())
    async with app.run_test(size=(100, 20)) as pilot:
        outline = app.widget
        outline.show_round(make_round(), VOCAB)
        await pilot.pause()
        y = next(y for y in range(20) if "␣dog" in outline.render_line(y).text)
        await pilot.click(TreeOutline, offset=(12, y))
        assert outline.node == 2
        assert [m.node for m in app.seen] == [2]


async def test_the_selected_line_is_scrolled_into_sight():
    app = Stage(TreeOutline())
    async with app.run_test(size=(60, 12)) as pilot:
        outline = app.widget
        outline.show_round(wide_round(), VOCAB)
        outline.select(12)
        await pilot.pause()
        await pilot.pause()
        assert any(
            segment.style.reverse
            for y in range(outline.scrollable_content_region.height)
            for segment in outline.render_line(y)
        )

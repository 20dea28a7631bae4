from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from textual.color import Color

from dartree_tui.widgets.rounds import BONUS
from dartree_tui.widgets.tree_grid import TreeGrid
from dartree_tui.widgets.tree_view import NodeOpened, NodeSelected
from tests.core.strategies import rounds
from tests.tui.samples import (
    VOCAB,
    Stage,
    make_round,
    partial_round,
    plain_round,
    wide_round,
)
from tests.tui.test_rounds import PIECES

SIZES = [(120, 20), (80, 16), (40, 9)]


def line(grid, y):
    return grid.render_line(y).text


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_a_finished_round(size, snapshot):
    app = Stage(TreeGrid())
    async with app.run_test(size=size) as pilot:
        app.widget.show_round(make_round(), VOCAB)
        await pilot.pause()
        snapshot(app, f"tree_grid_{size[0]}x{size[1]}")


@pytest.mark.parametrize(("stages", "name"), [(1, "drafted"), (4, "growing"), (7, "pruned")])
async def test_a_round_under_way(stages, name, snapshot):
    app = Stage(TreeGrid())
    async with app.run_test(size=(100, 12)) as pilot:
        app.widget.show_round(partial_round(make_round(), stages), VOCAB)
        await pilot.pause()
        snapshot(app, f"tree_grid_{name}")


async def test_a_selection_lights_its_path_and_children(snapshot):
    app = Stage(TreeGrid())
    async with app.run_test(size=(100, 12)) as pilot:
        app.widget.show_round(make_round(), VOCAB)
        app.widget.select(2)
        await pilot.pause()
        snapshot(app, "tree_grid_selected")
        lit = {
            segment.text
            for y in range(app.widget.size.height)
            for segment in app.widget.render_line(y)
            if segment.style.bgcolor
            and segment.style.bgcolor.triplet
            == Color.parse(app.theme_variables["select-children"]).rich_color.triplet
        }
        assert any("␣ran" in text for text in lit)
        assert not any("␣is" in text for text in lit)


async def test_empty_plain_and_cleared_views():
    app = Stage(TreeGrid(placeholder="nothing here"))
    async with app.run_test(size=(60, 8)) as pilot:
        grid = app.widget
        assert line(grid, 0).strip() == "nothing here"
        grid.show_round(plain_round(), VOCAB)
        await pilot.pause()
        assert "+" in line(grid, 1)
        assert "␣box" in line(grid, 1)
        grid.show_round(None, VOCAB)
        assert line(grid, 0).strip() == "nothing here"


async def test_keys_walk_the_tree():
    app = Stage(TreeGrid())
    async with app.run_test(size=(100, 12)) as pilot:
        grid = app.widget
        grid.show_round(make_round(), VOCAB)
        await pilot.pause()
        walked = []
        for key in (*"lhhglljk", "end", "home", *"llllkjhbhg"):
            await pilot.press(key)
            walked.append(grid.node)
        path = [11, 8, 4, 0, 1, 4, 5, 4, 6, 4, 8, 11, 13, 13, BONUS, 13, 11, BONUS, 11, 0]
        assert walked == path
        assert [m.node for m in app.seen][-1] == 0
        await pilot.press("enter")
        assert isinstance(app.seen[-1], NodeOpened)
        assert app.seen[-1].node == 0


async def test_arrows_reach_the_bonus_from_the_end_of_the_path():
    done = make_round(accepted=(0, 1, 4, 7, 10, 14), budget=14, fate="not_expanded")
    app = Stage(TreeGrid())
    async with app.run_test(size=(60, 12)) as pilot:
        app.widget.show_round(done, VOCAB)
        await pilot.press("right", "right")
        await pilot.pause()
        assert app.widget.node == BONUS
        assert "␣box" in line(app.widget, 1)  # scrolled into sight


async def test_clicks_select_and_open():
    app = Stage(TreeGrid())
    async with app.run_test(size=(100, 12)) as pilot:
        grid = app.widget
        grid.show_round(make_round(), VOCAB)
        await pilot.pause()
        at = line(grid, 3).index("␣dog")
        await pilot.click(TreeGrid, offset=(at, 3))
        assert grid.node == 2
        await pilot.click(TreeGrid, offset=(at, 3))
        await pilot.click(TreeGrid, offset=(line(grid, 1).index("␣box"), 1))
        await pilot.click(TreeGrid, offset=(at, 9))  # no node there
        assert [(type(m), m.node) for m in app.seen] == [
            (NodeSelected, 2),
            (NodeOpened, 2),
            (NodeSelected, BONUS),
        ]


async def test_clicks_know_about_scrolling():
    app = Stage(TreeGrid())
    async with app.run_test(size=(60, 10)) as pilot:
        grid = app.widget
        grid.show_round(wide_round(), VOCAB)
        grid.select(15 * 12)  # the last cell of the last column
        await pilot.pause()
        assert min(grid.scroll_offset) > 0
        [(x, y)] = [
            (segment_start, y)
            for y in range(grid.size.height)
            for segment_start in [_cursor_at(grid, y)]
            if segment_start is not None
        ]
        grid.select(None)
        await pilot.click(TreeGrid, offset=(x, y))
        assert grid.node == 15 * 12


def _cursor_at(grid, y):
    """Where the inverted cell of a line starts."""
    x = 0
    for segment in grid.render_line(y):
        if segment.style.reverse:
            return x
        x += segment.cell_length
    return None


async def test_search_goes_round_both_ways():
    app = Stage(TreeGrid())
    async with app.run_test(size=(100, 12)):
        grid = app.widget
        grid.show_round(make_round(), VOCAB)
        assert [grid.find("the") for _ in range(4)] == [0, 10, 11, 0]
        assert [grid.find("the", backwards=True) for _ in range(3)] == [11, 10, 0]
        assert grid.find(" DOG") == 2
        assert grid.find("␣box") == BONUS
        assert grid.find("e2 80") == 14
        assert grid.find("unheard of") is None
        assert grid.node == 14
        assert grid.find("") is None


async def test_a_filter_dims_the_others():
    app = Stage(TreeGrid())
    async with app.run_test(size=(100, 12)):
        grid = app.widget
        grid.show_round(make_round(), VOCAB)

        def inks():
            return {
                segment.text.split("━")[0].strip(): segment.style.color.triplet.hex
                for segment in grid.render_line(3)
                if "␣" in segment.text
            }

        bright = inks()
        grid.filter({"unreached"})
        dimmed = app.theme_variables["state-pruned"].lower()
        assert set(inks().values()) == {dimmed}
        assert set(bright.values()) != {dimmed}
        assert "○ walked past (4)  · unreached 3 " in line(grid, 11)
        grid.filter(None)
        assert inks() == bright


async def test_the_selection_survives_growth_but_not_the_next_round():
    app = Stage(TreeGrid())
    async with app.run_test(size=(100, 12)):
        grid = app.widget
        done = make_round()
        grid.show_round(partial_round(done, 3), VOCAB)
        grid.select(4)
        grid.show_round(partial_round(done, 5), VOCAB)
        grid.show_round(done, VOCAB)
        assert grid.node == 4
        grid.show_round(make_round(number=17), VOCAB)
        assert grid.node is None


@settings(deadline=None, max_examples=10, suppress_health_check=list(HealthCheck))
@given(st.lists(rounds(), min_size=1, max_size=3), st.sampled_from([(120, 16), (50, 9), (24, 4)]))
async def test_cells_line_up_whatever_the_tokens(found, size):
    app = Stage(TreeGrid())
    async with app.run_test(size=size) as pilot:
        grid = app.widget
        for done in found:
            grid.show_round(done, PIECES)
            grid.select(len(done.tree) - 1)
            await pilot.pause()
            room = grid.scrollable_content_region.size
            for y in range(room.height):
                assert cell_len(line(grid, y)) == room.width


async def test_wide_and_torn_tokens_keep_their_column():
    app = Stage(TreeGrid())
    async with app.run_test(size=(120, 12)):
        grid = app.widget
        grid.show_round(make_round(budget=14), VOCAB)
        shown = [line(grid, y) for y in range(2, 5)]
        assert "␣日本" in shown[0] or "␣日本" in shown[1]
        assert any("‹E2 80›" in text for text in shown)
        start = line(grid, 0).index("depth 5")
        for text in shown[:2]:
            glyph = max(text.rfind("○"), text.rfind("·"))
            assert cell_len(text[:glyph]) == start


async def test_bars_that_came_stay_until_the_pane_changes():
    """Rounds differ in what they need; the drawing would jump, and be arranged anew, at each."""
    app = Stage(TreeGrid())
    async with app.run_test(size=(60, 9)) as pilot:
        grid = app.widget
        grid.show_round(plain_round(), VOCAB)
        await pilot.pause()
        assert not grid.show_horizontal_scrollbar
        assert not grid.show_vertical_scrollbar
        grid.show_round(wide_round(), VOCAB)
        await pilot.pause()
        assert grid.show_horizontal_scrollbar
        assert grid.show_vertical_scrollbar
        grid.show_round(plain_round(), VOCAB)
        await pilot.pause()
        assert grid.show_horizontal_scrollbar
        assert grid.show_vertical_scrollbar
        assert grid.max_scroll_x == grid.max_scroll_y == 0
        await pilot.resize_terminal(100, 12)
        await pilot.pause()
        assert not grid.show_horizontal_scrollbar
        assert not grid.show_vertical_scrollbar


async def test_a_redraw_builds_no_more_lines_than_the_viewport_has():
    app = Stage(TreeGrid())
    async with app.run_test(size=(120, 24)) as pilot:
        grid = app.widget
        done = wide_round()
        assert len(done.tree) == 181
        grid.show_round(done, VOCAB)
        await pilot.pause()
        before = grid.lines_built
        start = time.process_time()
        for _ in range(20):
            grid.show_round(done, VOCAB)
            for y in range(grid.size.height):
                grid.render_line(y)
        cost = (time.process_time() - start) / 20
        assert grid.lines_built - before <= 20 * grid.size.height
        print(f"\nredraw of 180 nodes: {cost * 1000:.1f} ms of CPU")
        before = grid.lines_built
        for y in range(grid.size.height):
            grid.render_line(y)
        assert grid.lines_built == before  # nothing changed: every line is remembered


@pytest.mark.parametrize("ansi", [False, True])
async def test_no_color(ansi, monkeypatch, snapshot):
    monkeypatch.setenv("NO_COLOR", "1")
    app = Stage(TreeGrid(), ansi_color=ansi)
    async with app.run_test(size=(100, 12)) as pilot:
        assert app.no_color
        app.widget.show_round(make_round(), VOCAB)
        app.widget.select(2)
        await pilot.pause()
        snapshot(app, "tree_grid_selected")  # says the same without colour
        marked = [s.text for s in app.widget.render_line(3) if s.style and s.style.reverse]
        assert "".join(marked).endswith("␣dog")


async def test_themes_repaint():
    app = Stage(TreeGrid())
    async with app.run_test(size=(100, 12)) as pilot:
        app.widget.show_round(make_round(), VOCAB)
        await pilot.pause()

        def ink():
            hit = next(s for s in app.widget.render_line(2) if "●" in s.text)
            return hit.style.color.triplet.hex

        colours = set()
        for theme in ("dartree-dark", "dartree-light", "nord"):
            app.theme = theme
            await pilot.pause()
            colours.add(ink())
        assert len(colours) == 2  # Textual's own nord falls back to the dark default's states


def test_an_ascii_locale_is_no_obstacle():
    code = (
        "import asyncio\n"
        "from tests.tui.samples import *\n"
        "from tests.tui.snapshots import screen_text\n"
        "from dartree_tui.widgets.tree_grid import TreeGrid\n"
        "async def main():\n"
        "    app = Stage(TreeGrid())\n"
        "    async with app.run_test(size=(100, 12)) as pilot:\n"
        "        app.widget.show_round(make_round(), VOCAB)\n"
        "        await pilot.pause()\n"
        "        assert '●' in screen_text(app) and '●' in app.export_screenshot()\n"
        "asyncio.run(main())\n"
    )
    env = {k: v for k, v in os.environ.items() if k not in ("LANG", "PYTHONUTF8")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=env | {"LC_ALL": "C", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr

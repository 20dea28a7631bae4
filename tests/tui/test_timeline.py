from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from textual.events import MouseScrollDown, MouseScrollUp

from dartree_tui.widgets.timeline import RoundSelected, Timeline
from tests.tui.samples import Stage

HEIGHTS = [4, 0, 2, 7, 1, 5, 0, 12, 3, 6]


@pytest.mark.parametrize("size", [(60, 3), (24, 3), (60, 1)], ids=str)
async def test_bars_and_digits(size, snapshot):
    app = Stage(Timeline())
    async with app.run_test(size=size) as pilot:
        app.widget.styles.height = size[1]
        app.widget.show(HEIGHTS, 3, 12)
        await pilot.pause()
        snapshot(app, f"timeline_{size[0]}x{size[1]}")


async def test_empty_and_unmarked():
    app = Stage(Timeline())
    async with app.run_test(size=(40, 3)) as pilot:
        timeline = app.widget
        assert timeline.render_line(1).text.strip() == "0"
        await pilot.press("right", "w", "end")
        assert app.seen == []
        timeline.show(HEIGHTS, -1, 12)
        assert "10" in timeline.render_line(1).text
        await pilot.press("left")
        assert [m.index for m in app.seen] == [9]


async def test_keys_scrub():
    app = Stage(Timeline())
    async with app.run_test(size=(40, 3)) as pilot:
        timeline = app.widget
        timeline.show(HEIGHTS, 5, 12)
        await pilot.press("left", "right", "right", "home", "end", *"wwwW", "pageup", "pagedown")
        assert [m.index for m in app.seen] == [4, 5, 6, 0, 9, 1, 6, 1, 6, 0, 9]
        await pilot.press("end")  # already there: nothing to say
        assert len(app.seen) == 11


async def test_mouse_clicks_drags_and_wheels():
    app = Stage(Timeline())
    async with app.run_test(size=(60, 3)) as pilot:
        timeline = app.widget
        timeline.show(HEIGHTS, 0, 12)
        await pilot.pause()
        start = timeline.render_line(2).text.index("4")
        await pilot.mouse_down(Timeline, offset=(start + 2, 1))
        await pilot.hover(Timeline, offset=(start + 4, 1))
        await pilot.hover(Timeline, offset=(start + 30, 1))  # beyond the last round
        await pilot.mouse_up(Timeline, offset=(start + 30, 1))
        await pilot.hover(Timeline, offset=(start + 1, 1))  # the button is up: no scrubbing
        assert [m.index for m in app.seen] == [2, 4, 9]
        for wheel in (MouseScrollUp, MouseScrollUp, MouseScrollDown):
            timeline.post_message(wheel(timeline, start, 1, 0, 0, 0, False, False, False))
        await pilot.pause()
        assert [m.index for m in app.seen[3:]] == [8, 7, 8]
        assert all(isinstance(m, RoundSelected) for m in app.seen)


class Counted(list):
    """A list that counts how often its items are read."""

    reads = 0

    def __getitem__(self, index):
        self.reads += 1
        return super().__getitem__(index)


async def test_thousands_of_rounds_cost_a_screenful():
    app = Stage(Timeline())
    async with app.run_test(size=(120, 3)) as pilot:
        timeline = app.widget
        rounds = Counted(i % 8 for i in range(50_000))
        start = time.process_time()
        timeline.show(rounds, 49_999, 7)
        await pilot.pause()
        for y in range(3):
            timeline.render_line(y)
        print(f"\n50000 rounds: {(time.process_time() - start) * 1000:.1f} ms of CPU")
        assert 0 < rounds.reads <= 3 * 2 * 120
        assert timeline.window.stop == 50_000
        assert "‹" in timeline.render_line(1).text
        timeline.show(rounds, 0, 7)
        assert timeline.window.start == 0
        assert "›" in timeline.render_line(1).text


@settings(deadline=None, max_examples=15)
@given(
    data=st.data(),
    heights=st.lists(st.integers(0, 40), min_size=1, max_size=300),
    width=st.integers(12, 90),
)
async def test_the_marked_round_is_always_in_sight(data, heights, width):
    app = Stage(Timeline())
    async with app.run_test(size=(width, 3)):
        timeline = app.widget
        marks = data.draw(st.lists(st.integers(0, len(heights) - 1), min_size=1, max_size=8))
        for mark in marks:
            timeline.show(heights, mark, 16)
            assert mark in timeline.window
            for y in range(3):
                assert cell_len(timeline.render_line(y).text) == width
            marked = [s.text for s in timeline.render_line(2) if s.style.reverse]
            assert len(marked) == 1


async def test_the_window_stays_while_the_mark_moves_inside():
    app = Stage(Timeline())
    async with app.run_test(size=(60, 3)):
        timeline = app.widget
        rounds = [3] * 500
        timeline.show(rounds, 250, 7)
        first = timeline.window.start
        timeline.show(rounds, 240, 7)
        assert timeline.window.start == first


@pytest.mark.parametrize("ansi", [False, True])
async def test_no_color(ansi, monkeypatch, snapshot):
    monkeypatch.setenv("NO_COLOR", "1")
    app = Stage(Timeline(), ansi_color=ansi)
    async with app.run_test(size=(60, 3)) as pilot:
        app.widget.show(HEIGHTS, 3, 12)
        await pilot.pause()
        snapshot(app, "timeline_60x3")

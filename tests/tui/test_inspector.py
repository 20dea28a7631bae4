from __future__ import annotations

import pytest
from hypothesis import given, settings

from dartree_tui.palette import Palette
from dartree_tui.widgets.explain import MORE_DETAIL, why, why_bonus
from dartree_tui.widgets.inspector import NodeInspector, describe
from dartree_tui.widgets.rounds import BONUS
from tests.core.strategies import rounds
from tests.tui.samples import VOCAB, Stage, make_round, partial_round
from tests.tui.snapshots import screen_text
from tests.tui.test_rounds import PIECES


@pytest.fixture
async def palette():
    app = Stage(NodeInspector())
    async with app.run_test():
        return Palette.of(app)


CASES = {"hit": 8, "walked_past": 7, "unreached": 9, "pruned": 14, "bonus": BONUS, "root": 0}


@pytest.mark.parametrize("name", CASES)
async def test_every_kind_of_node(name, snapshot):
    app = Stage(NodeInspector())
    async with app.run_test(size=(58, 14)) as pilot:
        app.widget.show(make_round(), CASES[name], VOCAB)
        await pilot.pause()
        snapshot(app, f"inspector_{name}")


async def test_narrow_panes_scroll():
    app = Stage(NodeInspector())
    async with app.run_test(size=(30, 6)) as pilot:
        app.widget.show(make_round(), 8, VOCAB)
        await pilot.pause()
        assert app.widget.max_scroll_y > 0
        before = screen_text(app)
        await pilot.press("end")
        await pilot.pause()
        assert screen_text(app) != before


async def test_without_a_selection_the_round_is_told():
    app = Stage(NodeInspector())
    async with app.run_test(size=(60, 8)) as pilot:
        assert "No round yet" in screen_text(app)
        app.widget.show(make_round(), None, VOCAB)
        await pilot.pause()
        assert "accepted 4 of 4 depths + bonus ‘␣box’" in screen_text(app)
        app.widget.show_bonus(make_round(), VOCAB)
        await pilot.pause()
        assert "not among the candidates" in " ".join(screen_text(app).split())


async def test_a_node_that_is_gone_is_no_error():
    app = Stage(NodeInspector())
    async with app.run_test(size=(60, 8)) as pilot:
        app.widget.show(partial_round(make_round(), 2), 9, VOCAB)
        await pilot.pause()
        assert "candidates" in screen_text(app)


def test_numbers(palette):
    said = describe(make_round(), 4, VOCAB, 80, palette).plain
    assert "AR head    −0.60  .550  rank 1" in said
    assert "marginal   −1.61  .200  rank 2" in said
    assert " +1.01  the path made it 2.8× likelier" in said
    assert "path       −1.08  key −1.48  cut −4.11  kept by 2.63" in said
    assert "target     −0.21  .810  rank 1" in said
    assert "coverage          .910  target mass on kept siblings" in said
    assert "coverage          .880  target mass on kept children" in said


def test_what_was_not_measured_is_not_shown(palette):
    basic = describe(make_round(full=False), 4, VOCAB, 80, palette).plain
    assert "rank" not in basic
    assert "coverage" not in basic
    assert basic.endswith(MORE_DETAIL)
    pruned = describe(make_round(), 14, VOCAB, 80, palette).plain
    assert "never scored it" in pruned
    assert "missed by 0.67" in pruned
    whole = describe(make_round(budget=99), 14, VOCAB, 80, palette).plain
    assert "nothing was pruned" in whole
    growing = describe(partial_round(make_round(), 4), 4, VOCAB, 80, palette).plain
    assert "target" not in growing.partition("\n\n")[0]


@settings(deadline=None)
@given(done=rounds())
def test_any_node_of_any_round(palette_of_default, done):
    for node in range(len(done.tree)):
        said = describe(done, node, PIECES, 40, palette_of_default).plain
        assert "nan" not in said
        assert said.replace(f"\n{MORE_DETAIL}", f" {MORE_DETAIL}").endswith(why(done, node, PIECES))
    assert describe(done, BONUS, PIECES, 40, palette_of_default).plain.endswith(
        why_bonus(done, PIECES)
    )


@pytest.fixture(scope="module")
def palette_of_default():
    class Plain:
        class current_theme:  # noqa: N801
            dark = True

        theme_variables: dict[str, str] = {}  # noqa: RUF012

    return Palette.of(Plain())


async def test_themes_and_sizes_rewrite_the_pane():
    app = Stage(NodeInspector())
    async with app.run_test(size=(60, 14)) as pilot:
        app.widget.show(make_round(), 8, VOCAB)
        await pilot.pause()

        def colours():
            strips = app.screen._compositor.render_strips()
            return {s.style.color.triplet.hex for strip in strips for s in strip if s.style.color}

        dark = colours()
        app.theme = "dartree-light"
        await pilot.pause()
        await pilot.pause()
        hit = app.theme_variables["state-hit"].lower()
        assert hit in colours() - dark
        wide = screen_text(app)
        await pilot.resize_terminal(40, 14)
        await pilot.pause()
        assert screen_text(app) != wide


@pytest.mark.parametrize("ansi", [False, True])
async def test_no_color(ansi, monkeypatch, snapshot):
    monkeypatch.setenv("NO_COLOR", "1")
    app = Stage(NodeInspector(), ansi_color=ansi)
    async with app.run_test(size=(58, 14)) as pilot:
        app.widget.show(make_round(), CASES["hit"], VOCAB)
        await pilot.pause()
        snapshot(app, "inspector_hit")

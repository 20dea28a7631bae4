from __future__ import annotations

import asyncio
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from textual.color import Color

from dartree_core.events import STAGES
from dartree_tui import themes
from dartree_tui.palette import Palette, score_step
from dartree_tui.theme_file import SCORE_STEPS, TABLES, ThemeError, parse_theme, read_theme
from dartree_tui.themes import (
    DEFAULT_DARK,
    load_themes,
    shipped_theme_dir,
    user_theme_dir,
    variable_defaults,
    watch_themes,
)
from dartree_tui.widgets.rounds import NODE_STATES
from dartree_tui.widgets.tree_grid import TreeGrid
from tests.tui.driving import running, settle
from tests.tui.samples import VOCAB, Stage, make_round

SHIPPED = sorted(path.stem for path in shipped_theme_dir().glob("*.toml"))
PATH = Path("mine.toml")


@pytest.fixture
def data():
    """A valid theme to break."""
    return tomllib.loads((shipped_theme_dir() / f"{DEFAULT_DARK}.toml").read_text("utf-8"))


def luminance(colour):
    """Relative luminance as WCAG 2 defines it."""
    linear = [
        c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4
        for c in colour.rgb
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(Color.parse(one)), luminance(Color.parse(other))))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_what_wcag_says():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def test_the_promised_themes_are_there():
    assert {"dartree-dark", "dartree-light", "high-contrast", "tol-bright", "tol-muted"} <= set(
        SHIPPED
    )
    assert {
        load_themes(Path("nowhere")).files[n].theme.dark for n in ("tol-bright", "tol-muted")
    } == {
        True,
        False,
    }


@pytest.mark.parametrize("name", SHIPPED)
def test_text_is_readable(name):
    theme = read_theme(shipped_theme_dir() / f"{name}.toml").theme
    colours = theme.variables
    faint = {"state-unreached", "state-pruned", *(f"score-{i}" for i in range(SCORE_STEPS))}
    papers = {"select-path", "select-children"}
    text = {
        k: v
        for k, v in colours.items()
        if k not in faint | papers and not k.startswith("scrollbar-")
    }
    for key in ("foreground", "primary", "secondary", "accent", "warning", "error", "success"):
        text[key] = getattr(theme, key)
    for paper in (theme.background, theme.surface):
        for key, colour in text.items():
            assert contrast(colour, paper) >= 4.5, key
    for paper in (theme.background, theme.surface, *(colours[p] for p in papers)):
        for key in faint:
            assert contrast(colours[key], paper) >= 3, (key, paper)
        for key in ("state-hit", "state-walked-past", "state-bonus", "state-candidate", "dim"):
            assert contrast(colours[key], paper) >= 4.2, (key, paper)


@pytest.mark.parametrize("name", SHIPPED)
def test_the_ramp_rises_from_the_background(name):
    theme = read_theme(shipped_theme_dir() / f"{name}.toml").theme
    steps = [contrast(theme.variables[f"score-{i}"], theme.background) for i in range(SCORE_STEPS)]
    assert steps == sorted(steps)
    assert steps[-1] > 2 * steps[0]


def test_the_ramp_is_interpolated_between_its_ends(data):
    data["score"]["ramp"] = ["#000000", "#202020", "#404040", "#606060", "#808080"]
    variables = parse_theme(data, PATH).theme.variables
    assert variables["score-0"] == "#000000"
    assert variables["score-7"] == "#808080"
    assert variables["score-3"].lower() in ("#363636", "#373737")


def test_tables_cover_what_is_shown():
    assert set(TABLES["state"]) == {*NODE_STATES, "bonus"}
    assert TABLES["stage"] == STAGES


BREAKS = {
    "an unknown table": (lambda d: d.update(stats={}), "stats", "Did you mean state?"),
    "an unknown key": (lambda d: d["state"].update(hits="red"), "state.hits", "state.hit?"),
    "a missing table": (lambda d: d.pop("stage"), "stage is missing", "[stage]"),
    "a missing key": (lambda d: d["state"].pop("hit"), "state.hit is missing", 'hit = "#rrggbb"'),
    "no colour": (lambda d: d["base"].update(dim="grean"), "base.dim is 'grean'", "#rrggbb"),
    "a number": (lambda d: d["base"].update(dim=7), "base.dim is 7", "in quotes"),
    "transparent": (lambda d: d["base"].update(dim="#ff000080"), "base.dim", "solid"),
    "the terminal's": (lambda d: d["base"].update(dim="ansi_red"), "base.dim", "solid"),
    "a short ramp": (lambda d: d["score"].update(ramp=["red"] * 4), "has 4 colours", "5 to 8"),
    "a bad step": (lambda d: d["score"]["ramp"].append("nil"), "score.ramp[7]", "#rrggbb"),
    "no ramp": (lambda d: d["score"].pop("ramp"), "score.ramp is missing", "5 to 8"),
    "darkness": (lambda d: d.update(dark="yes"), "dark is 'yes'", "true or false"),
    "a table as text": (lambda d: d.update(state="red"), "state is 'red'", "[state]"),
    "half a colour": (
        lambda d: d.update(variables={"footer-background": "#12345z"}),
        "variables.footer-background is '#12345z'",
        "#rrggbb",
    ),
    "two declarations": (lambda d: d.update(variables={"x": "red; y: z"}), "variables.x", "colour"),
    "no style": (lambda d: d.update(variables={"link-style": "wavy"}), "link-style", "bold"),
    "a variable": (lambda d: d.update(variables={"x": 1}), "variables.x is 1", "in quotes"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_faults_name_file_key_and_remedy(name, data):
    spoil, fault, remedy = BREAKS[name]
    spoil(data)
    with pytest.raises(ThemeError) as caught:
        parse_theme(data, PATH)
    assert str(PATH) in caught.value.message
    assert fault in caught.value.message
    assert remedy in caught.value.message + caught.value.remedy
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("content", "fault"),
    [(b"dark = tru", "not valid TOML"), (b"\xff\xfe", "not UTF-8"), (None, "cannot be read")],
)
def test_unreadable_files(tmp_path, content, fault):
    path = tmp_path / "mine.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ThemeError, match=fault):
        read_theme(path)


def test_file_names_become_class_names(data):
    with pytest.raises(ThemeError, match="cannot name a theme"):
        parse_theme(data, Path("My Theme.toml"))


def test_extra_variables_reach_textual(data):
    data["variables"] = {"footer-background": "#123456"}
    assert parse_theme(data, PATH).theme.variables["footer-background"] == "#123456"


def test_every_value_textual_itself_gives_a_variable_is_accepted(data):
    variables = parse_theme(data, PATH).theme.to_color_system().generate()
    data["variables"] = variables
    assert parse_theme(data, PATH).theme.variables.items() >= variables.items()


@pytest.mark.parametrize("name", [DEFAULT_DARK, "mine"])
async def test_colours_that_no_style_sheet_takes_leave_the_old_ones(name):
    async with running() as (app, pilot):
        before = app.theme_variables["footer-background"]
        theme = app.current_theme
        spoilt = replace(theme, name=name, variables=theme.variables | {"footer-background": "7"})
        app.register_theme(spoilt)
        if name == app.theme:
            app.refresh_css(animate=False)
        else:
            app.theme = name
        await settle(pilot)
        assert app.theme == DEFAULT_DARK
        assert app.current_theme is theme
        assert app.theme_variables["footer-background"] == before
        assert any("[variables]" in n.message for n in app._notifications)


def copy(folder, name, **changes):
    text = (shipped_theme_dir() / f"{DEFAULT_DARK}.toml").read_text("utf-8")
    for old, new in changes.items():
        text = text.replace(old, new)
    (folder / f"{name}.toml").write_text(text, "utf-8")


def test_the_users_files_come_on_top_and_broken_ones_are_told(tmp_path):
    copy(tmp_path, DEFAULT_DARK, Calm="Mine, calm")
    copy(tmp_path, "my-own")
    (tmp_path / "broken.toml").write_text("[state]\nhit = 1")
    (tmp_path / "notes.txt").write_text("not a theme")
    found = load_themes(tmp_path)
    assert found.files[DEFAULT_DARK].about.startswith("Mine")
    assert found.files["my-own"].path.parent == tmp_path
    assert set(SHIPPED) < set(found.files)
    assert len(found.problems) == 1
    assert "broken.toml" in found.problems[0].message


def test_the_users_folder_is_in_the_configuration_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    assert user_theme_dir().name == "themes"
    assert user_theme_dir().parent.name == "dartree"


async def test_saving_a_file_is_noticed(tmp_path):
    folder = tmp_path / "themes"
    stop = asyncio.Event()
    seen = []

    async def watch():
        async for found in watch_themes(folder, stop):
            seen.append(found)
            if "fresh" in found.files:
                stop.set()

    task = asyncio.create_task(watch())
    for _ in range(100):  # the watcher starts in a thread of its own: save until it has seen one
        await asyncio.sleep(0.1)
        if folder.is_dir():
            copy(folder, "fresh")
        if stop.is_set():
            break
    await asyncio.wait_for(task, 10)
    assert "fresh" in seen[-1].files


async def test_a_reloaded_theme_repaints_the_grid(tmp_path):
    app = Stage(TreeGrid())
    async with app.run_test(size=(80, 12)) as pilot:
        app.widget.show_round(make_round(), VOCAB)
        await pilot.pause()
        copy(tmp_path, DEFAULT_DARK, **{"#8be0c8": "#123456"})
        app.register_theme(load_themes(tmp_path).files[DEFAULT_DARK].theme)
        app.refresh_css()
        await pilot.pause()
        inks = {s.style.color.triplet.hex for s in app.widget.render_line(2) if s.style.color}
        assert "#123456" in inks


async def test_a_theme_of_textuals_own_gets_our_defaults():
    app = Stage(TreeGrid())
    async with app.run_test():
        app.theme = "nord"
        dark = variable_defaults()["state-hit"].lower()
        assert Palette.of(app).state["hit"].color.triplet.hex == dark
        assert Palette.of(app).text.color is not None


@pytest.mark.parametrize(
    ("p", "step"), [(0.0, 0), (0.12, 0), (0.13, 1), (0.5, 4), (0.999, 7), (1.0, 7), (-1, 0)]
)
def test_score_steps(p, step):
    assert score_step(p) == step


def test_score_of_the_unknown():
    assert score_step(float("nan")) == 0


def test_a_wheel_carries_the_themes_to_where_they_are_looked_for() -> None:
    root = Path(themes.__file__).parent.parent
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included == {shipped_theme_dir().name: "dartree_tui/themes"}
    assert shipped_theme_dir() == root / "themes"


async def test_the_app_runs_where_nothing_can_be_watched(monkeypatch):
    async def nothing(*_, **__):
        raise OSError("OS file watch limit reached.")
        yield

    monkeypatch.setattr("watchfiles.awatch", nothing)
    async with running() as (app, _pilot):
        told = []
        monkeypatch.setattr(app, "warn", told.append)
        await app.watch_themes().wait()
        assert app.is_running
        assert len(told) == 1
        assert "watch limit" in told[0]

"""The app as a user meets it: keys in, screen out, at three sizes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text
from textual.events import Key, Paste
from textual.geometry import Offset
from textual.selection import Selection
from textual.widgets import Markdown, OptionList, Static
from textual.widgets._markdown import MarkdownBlock

from dartree_core.config import DecodeConfig
from dartree_tui.app import DartreeApp
from dartree_tui.compare import Comparison
from dartree_tui.engines.fake import FakeEngine
from dartree_tui.engines.fake_decoder import ANSWER, FakeDecoder
from dartree_tui.engines.replay import ReplayEngine
from dartree_tui.history import History
from dartree_tui.pace import Pace
from dartree_tui.screens.compare import OneLine, table
from dartree_tui.settings import Settings, load_settings
from dartree_tui.widgets.answer import AnswerView, SourceView
from dartree_tui.widgets.chat import ChatLog
from dartree_tui.widgets.rounds import BONUS
from dartree_tui.widgets.timeline import Timeline
from tests.tui.driving import PLAIN, SIZES, ask, fake_trace, running, settle, sleep, slow, until
from tests.tui.snapshots import Snapshot, screen_text
from tests.tui.test_client import Choosy, Fragile
from tests.tui.test_recall import Other


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
async def test_chat_at_three_sizes(size: tuple[int, int], snapshot: Snapshot) -> None:
    async with running(size=size) as (app, pilot):
        await ask(pilot, "explain")
        snapshot(app, f"main_{size[0]}x{size[1]}")


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
async def test_without_colour_everything_is_still_said(
    size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(size=size) as (app, pilot):
        await ask(pilot, "explain")
        coloured = screen_text(app)
    monkeypatch.setenv("NO_COLOR", "1")
    async with running(size=size) as (app, pilot):
        await ask(pilot, "explain")
        plain = screen_text(app)
    assert plain == coloured


@pytest.mark.parametrize("size", [(39, 24), (80, 11), (20, 5)])
async def test_too_small_says_so_and_recovers(size: tuple[int, int]) -> None:
    async with running(size=size) as (app, pilot):
        await pilot.press("e", "space", "n", "c", "f2")  # nothing happens unseen
        assert "Too small" in screen_text(app) or size == (20, 5)
        assert len(app.screen_stack) == 1
        await pilot.resize_terminal(120, 40)
        await settle(pilot)
        assert "Too small" not in screen_text(app)
        assert "Ask something" in screen_text(app)


async def test_resizing_while_an_answer_comes() -> None:
    async with running(slow(0.02)) as (app, pilot):
        await ask(pilot, "explain", finish=False)
        for size in ((80, 24), (40, 12), (200, 60), (41, 13), (120, 40), (10, 3), (100, 30)):
            await pilot.resize_terminal(*size)
            await pilot.pause(0.05)
        await until(pilot, lambda: app.client.status == "ready")
        assert app.client.store.turns[0].text == ANSWER


async def test_the_answer_is_markdown_and_complete() -> None:
    async with running(slow(0.01)) as (app, pilot):
        await ask(pilot, "explain")
        view = app.main.query_one(AnswerView)
        assert view.query_one(Markdown).source == ANSWER
        text = screen_text(app)
        assert "1. The drafter proposes" in text
        assert "**target**" not in text


async def test_typing_fast_loses_no_letter_and_no_enter() -> None:
    async with running() as (app, pilot):
        for key in (*"abc", "enter"):
            app.post_message(Key(key, key if len(key) == 1 else None))
        await until(pilot, lambda: bool(app.client.store.turns))
        assert app.client.store.turns[0].prompt == "abc"
        assert app.main.prompt.text == ""


async def test_what_is_typed_right_after_enter_stays() -> None:
    async with running() as (app, pilot):
        for key in (*"abc", "enter", *"de"):
            app.post_message(Key(key, key if len(key) == 1 else None))
        await until(pilot, lambda: bool(app.client.store.turns))
        assert app.client.store.turns[0].prompt == "abc"
        assert app.main.prompt.text == "de"
        assert app.history.back("") == "abc"
        await pilot.press("f")
        assert app.main.prompt.text == "def"


async def test_line_breaks_and_history() -> None:
    async with running() as (app, pilot):
        prompt = app.main.prompt
        await pilot.press("a", "ctrl+j", "b", "alt+enter", "c")
        assert prompt.text == "a\nb\nc"
        await pilot.press("enter")
        await until(pilot, lambda: app.client.status == "ready" and not prompt.text)
        assert app.client.store.turns[0].prompt == "a\nb\nc"
        await pilot.press("d", "up")
        assert prompt.text == "a\nb\nc"
        await pilot.press("down")
        assert prompt.text == "d"


async def test_arrows_go_by_lines_on_screen_before_they_recall() -> None:
    async with running(size=(80, 24)) as (app, pilot):
        prompt = app.main.prompt
        app.history.add("older")
        app.history.add("a long question " + "word " * 30)
        await pilot.press("up", "X")
        edited = prompt.text
        await pilot.press("up")
        assert prompt.text == edited
        await pilot.press("up", "up")
        assert prompt.text == "older"
        await pilot.press("down")
        assert prompt.text == edited


async def test_a_failed_question_comes_back_to_the_prompt() -> None:
    async with running() as (app, pilot):
        await ask(pilot, "please fail")
        assert app.main.prompt.text == "please fail"
        assert "failed: The prompt does not fit" in screen_text(app)


async def test_a_question_typed_while_loading_is_sent_when_ready() -> None:
    left = [slow(0.0, load_seconds=4)]
    app = DartreeApp(lambda: left.pop(0), Settings(), watch=False)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.main.painted and app.client.status == "loading")
        assert "LOADING" in screen_text(app)
        await pilot.press(*"early", "enter")
        await until(pilot, lambda: app.client.waiting is not None)
        assert "waits for the model: early" in screen_text(app)
        await until(pilot, lambda: app.client.status == "ready" and bool(app.client.store.turns))
        assert app.client.store.turns[0].prompt == "early"


async def test_escape_stops_then_leaves_the_prompt() -> None:
    async with running(slow(0.3)) as (app, pilot):
        await ask(pilot, "explain", finish=False)
        await until(pilot, lambda: len(app.client.store.marks) > 2)
        assert "LIVE" in screen_text(app)
        await pilot.press("escape")
        await until(pilot, lambda: app.client.status == "ready")
        assert app.client.store.turns[0].finished is not None
        assert app.client.store.turns[0].finished.reason == "cancelled"
        assert "stopped" in screen_text(app)
        await pilot.press("escape")
        assert app.main.drawing.has_focus
        await pilot.press("i")
        assert app.main.prompt.has_focus


async def test_pausing_freezes_the_view_and_events_keep_arriving() -> None:
    async with running(slow(0.25)) as (app, pilot):
        await ask(pilot, "explain", finish=False)
        await until(pilot, lambda: len(app.client.store.marks) > 3)
        await pilot.press("f5")
        await settle(pilot)
        grid = app.main.drawing.shown
        frozen = app.main.query_one(AnswerView).query_one(Markdown).source
        rounds = len(app.client.store.marks)
        await until(pilot, lambda: len(app.client.store.marks) > rounds + 3)
        assert app.main.drawing.shown is grid
        text = screen_text(app)
        assert "PAUSED  +" in text
        await pilot.press("f5")
        await until(pilot, lambda: app.main.drawing.shown is not grid)
        answer = app.main.query_one(AnswerView).query_one(Markdown)
        await until(pilot, lambda: len(answer.source) > len(frozen))


async def test_step_mode_advances_by_stage_and_round() -> None:
    async with running() as (app, pilot):
        await pilot.press("f7")
        assert app.client.stepping
        await ask(pilot, "explain", finish=False)
        store = app.client.store
        await until(pilot, lambda: store.turn is not None and store.turn.prefill is not None)
        assert "STEP" in screen_text(app)
        seen = []
        for _ in range(11):
            before = store.version
            await pilot.press("f8")
            await until(pilot, lambda before=before: store.version > before)  # type: ignore[misc]
            seen.append(store.partial.phase if store.partial else "done")
        assert seen == ["draft", *["expand"] * 7, "prune", "verify", "done"]
        assert len(store.marks) == 1
        await pilot.press("shift+f8")
        await until(pilot, lambda: len(store.marks) == 2)
        await pilot.press("f7")
        await until(pilot, lambda: app.client.status == "ready")


async def test_the_title_tells_the_stage() -> None:
    async with running() as (app, pilot):
        await pilot.press("f7")
        await ask(pilot, "explain", finish=False)
        for words in ("guesses a whole block at once", "depth 1:"):
            await pilot.press("f8")
            await until(pilot, lambda: app.client.store.partial is not None)
            await pilot.pause(0.2)
            await settle(pilot)
            assert words in screen_text(app)


async def test_rounds_nodes_and_text_point_at_each_other() -> None:
    async with running() as (app, pilot):
        await ask(pilot, "explain")
        main, store = app.main, app.client.store
        await pilot.press("escape", "left_square_bracket", "left_square_bracket")
        await settle(pilot)
        assert main.view.at == len(store.marks) - 3
        source = main.query_one(SourceView)
        assert source.display
        await pilot.press("g", "l")
        assert main.drawing.node not in (None, 0, BONUS)
        await pilot.press("b")
        assert main.drawing.node == BONUS
        assert "the target itself chose" in screen_text(app)
        wanted = 1
        start = store.marks[wanted].span[0]
        assert 0 < start < source.size.width - 5
        main.query_one(ChatLog).scroll_home(animate=False)
        await settle(pilot)
        await pilot.click(SourceView, offset=(start, 0))
        await settle(pilot)
        assert main.view.at == wanted


async def test_a_click_on_a_rendered_word_finds_its_round() -> None:
    async with running() as (app, pilot):
        await ask(pilot, "explain")
        main, store = app.main, app.client.store
        main.query_one(ChatLog).scroll_home(animate=False)
        await settle(pilot)
        shown = "Speculative decoding lets a small drafter"
        await pilot.click(Markdown, offset=(shown.index("drafter") + 2, 0))
        await settle(pilot)
        assert main.view.at == store.round_at(store.turns[0], ANSWER.index("drafter") + 2)


@pytest.mark.parametrize("shaded", [False, True])
async def test_the_selection_s_own_round_is_gone_to_not_that_of_its_words(shaded: bool) -> None:
    answer = "the tree is built, the tree is pruned, the tree is kept"
    async with running(FakeEngine(FakeDecoder(answer=answer))) as (app, pilot):
        await ask(pilot, "explain")
        main, store = app.main, app.client.store
        await pilot.press("escape", *("p" if shaded else ""))
        await settle(pilot)
        place = answer.rindex("tree")
        widget = main.query_one(SourceView if shaded else MarkdownBlock)
        line = Selection(Offset(place - 1, 0), Offset(place + 4, 0))  # with its blank
        main.selections = {widget: line}
        await pilot.press("r")
        assert main.view.at == store.round_at(store.turns[0], place)
        assert main.view.at != store.round_at(store.turns[0], answer.index("tree"))


async def test_words_of_a_question_were_written_by_no_round() -> None:
    async with running() as (app, pilot):
        await ask(pilot, "target")
        await pilot.press("escape")
        app.main.selections = {app.main.query_one(".you"): Selection(None, None)}
        await pilot.press("r")
        assert app.main.view.at is None


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
async def test_enter_in_the_tree_brings_the_node_into_view(size: tuple[int, int]) -> None:
    async with running(size=size) as (app, pilot):
        await ask(pilot, "explain")
        await pilot.press("escape", "4", "f6")
        await settle(pilot)
        app.main.drawing.focus()
        await pilot.press("g", "l", "enter")
        await settle(pilot)
        pane = app.main.query_one("#node")
        assert pane.size.height > 2
        assert app.focused in (pane, app.main.drawing)
        assert (app.focused is pane) == (size == (40, 12))


async def test_the_timeline_scrubs() -> None:
    async with running() as (app, pilot):
        await ask(pilot, "explain")
        app.main.query_one(Timeline).focus()
        await pilot.press("home")
        await settle(pilot)
        assert app.main.view.at == 0
        assert "BROWSING  round 1/" in screen_text(app)
        await pilot.press("right", "right")
        assert app.main.view.at == 2
        await pilot.press("w")
        store = app.client.store
        at = app.main.view.at
        assert at is not None
        assert store.marks[at].accepted == min(m.accepted for m in store.marks)
        await pilot.press("f")
        assert app.main.view.following


async def test_stepping_and_playing_through_what_was() -> None:
    async with running() as (app, pilot):
        await ask(pilot, "explain")
        await pilot.press("escape", "left_square_bracket", "n")
        await settle(pilot)
        assert "stage 1" in screen_text(app)
        await pilot.press("f", "space")
        assert app.main.view.playing
        await until(pilot, lambda: (app.main.view.at or 0) >= 2)
        await pilot.press("space")
        assert not app.main.view.playing


async def test_panes_are_hidden_maximised_and_cycled() -> None:
    async with running() as (app, pilot):
        await ask(pilot, "explain")
        await pilot.press("escape", "5")
        await settle(pilot)
        assert "statistics" not in screen_text(app)
        await pilot.press("5", "m")
        await settle(pilot)
        text = screen_text(app)
        assert "statistics" not in text
        assert "root" in text
        await pilot.press("escape")
        await settle(pilot)
        assert "statistics" in screen_text(app)
    async with running(size=(80, 24)) as (app, pilot):
        await ask(pilot, "explain")
        for words in ("chat", "node", "statistics", "chat"):
            assert f"─{words}─" in screen_text(app)
            await pilot.press("f6")
            await settle(pilot)


async def test_grid_and_outline_keep_the_node() -> None:
    async with running() as (app, pilot):
        await ask(pilot, "explain")
        await pilot.press("escape", "l", "l")
        node = app.main.drawing.node
        await pilot.press("t")
        await settle(pilot)
        assert app.main.tree_kind == "outline"
        assert app.main.drawing.node == node
        await pilot.press("v")
        await settle(pilot)
        assert "only hit" in screen_text(app)


async def test_origin_shading_is_told_without_colour() -> None:
    async with running() as (app, pilot):
        await ask(pilot, "explain")
        await pilot.press("escape", "p")
        await settle(pilot)
        assert app.main.query_one(SourceView).display
        assert "italic prefill" in screen_text(app)
        await pilot.press("p")
        await settle(pilot)
        assert app.main.query_one(Markdown).display


async def test_copying_takes_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[str] = []
    monkeypatch.setattr("dartree_tui.app.copy", lambda _app, text: copied.append(text))
    async with running() as (app, pilot):
        await pilot.press("escape", "y")
        assert copied == []
        await pilot.press("i")
        await ask(pilot, "explain")
        await pilot.press("escape", "y", "Y")
        assert copied[0] == ANSWER
        assert copied[1].startswith("def accept(path, choice):\n    return")
        assert app.client.status == "ready"


async def test_copying_takes_all_of_an_answer_that_was_gone_on_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copied: list[str] = []
    monkeypatch.setattr("dartree_tui.app.copy", lambda _app, text: copied.append(text))
    async with running(settings=PLAIN.changed("decode", max_new_tokens=85)) as (app, pilot):
        await ask(pilot, "explain")
        assert app.client.store.turns[0].text.endswith("return [t for t, c")
        await pilot.press("ctrl+g")
        await until(pilot, lambda: len(app.client.conversation.messages[-1].turns) == 2)
        await pilot.press("escape", "y", "Y")
        assert copied[0] == ANSWER
        assert copied[1].startswith("def accept(path, choice):")
        await pilot.press("left_curly_bracket", "y")
        assert copied[2] == ANSWER


async def test_a_lost_worker_is_shown_with_its_log_and_restarted() -> None:
    engine = Fragile(FakeDecoder(0.3))
    async with running(engine, FakeEngine()) as (app, pilot):
        await ask(pilot, "explain", finish=False)
        await until(pilot, lambda: len(app.client.store.marks) > 2)
        engine.die()
        await until(pilot, lambda: app.client.status == "lost")
        text = screen_text(app)
        assert "WORKER LOST" in text
        assert "SIGSEGV" in text
        assert "oh\n" in text.replace(" ", "").replace("│", "\n")
        said = app.client.store.turns[0].text
        assert [m.content for m in app.client.conversation.messages] == ["explain", said]
        await pilot.press("enter")
        await until(pilot, lambda: len(app.client.store.turns) == 2)
        await until(pilot, lambda: app.client.status == "ready")
        assert said + app.client.store.turns[1].text == ANSWER


@pytest.mark.parametrize("when", ["loading", "decoding"])
async def test_quitting_is_instant(when: str) -> None:
    engine = slow(2.0, load_seconds=30.0 if when == "loading" else 0.0)
    left = [engine]
    settings = Settings().changed("engine", calibrate=False)
    app = DartreeApp(lambda: left.pop(0), settings, watch=False)
    async with app.run_test(size=(80, 24)) as pilot:
        wanted = "loading" if when == "loading" else "ready"
        await until(pilot, lambda: app.client.status == wanted)
        if when == "decoding":
            await pilot.press("x", "enter")
            await until(pilot, lambda: app.client.status == "busy")
        began = time.monotonic()
        await pilot.press("ctrl+q")
        await pilot.pause()
    assert time.monotonic() - began < 1.5, "quitting waited for the engine's two-second round"


async def test_settings_change_what_runs_and_are_saved(tmp_path: Path) -> None:
    file = tmp_path / "tui.toml"
    async with running(settings_file=file) as (app, pilot):
        await pilot.press("f2")
        await settle(pilot)
        text = screen_text(app)
        assert "next round" in text
        assert "next turn" in text
        budget = app.screen.query_one("#budget")
        budget.focus()
        await pilot.press("end", "x", "enter")
        await settle(pilot)
        assert "It must be a whole number or auto" in screen_text(app)
        await pilot.press("home", "shift+end", "0", "enter")
        await settle(pilot)
        assert "whole number of at least 1" in screen_text(app)
        assert app.client.settings.decode.budget == 64
        await pilot.press("home", "shift+end", "9", "enter")
        assert app.client.settings.decode.budget == 9
        await pilot.press("ctrl+s", "escape")
        await settle(pilot)
        assert "B=9" in screen_text(app)
    assert load_settings(file, {}).decode.budget == 9


async def test_a_value_still_being_typed_counts_when_saving_and_closing(tmp_path: Path) -> None:
    path = tmp_path / "tui.toml"
    async with running(settings_file=path) as (app, pilot):
        await pilot.press("f2")
        await settle(pilot)
        app.screen.query_one("#width").focus()
        await pilot.pause()
        await pilot.press("7", "ctrl+s")
        assert load_settings(path, {}).decode.width == 7
        await pilot.press("home", "shift+end", "x", "ctrl+s")
        assert load_settings(path, {}).decode.width == 7
        assert "width" in str(app.screen.query_one("#fault-width", Static).render())
        await pilot.press("home", "shift+end", "9", "escape")
        assert len(app.screen_stack) == 1
        assert app.client.settings.decode.width == 9


async def test_a_value_changed_back_after_saving_is_saved_too(tmp_path: Path) -> None:
    path = tmp_path / "tui.toml"
    async with running(settings_file=path) as (app, _):
        for width in (7, 12):
            app.client.change(width=width)
            app.save_settings()
            assert load_settings(path, {}).decode.width == width


async def test_a_faulty_value_is_named_before_escape_drops_it() -> None:
    async with running() as (app, pilot):
        await pilot.press("f2")
        await settle(pilot)
        app.screen.query_one("#width").focus()
        await pilot.pause()
        await pilot.press("x", "escape")
        assert len(app.screen_stack) == 2
        assert app.screen.query_one("#fault-width").display
        await pilot.press("escape")
        assert len(app.screen_stack) == 1
        assert app.client.settings.decode.width == 12


async def test_keys_can_be_remapped() -> None:
    from dataclasses import replace

    settings = replace(Settings(), keys={"pause": "f12", "nonsense": "f3", "prompt.newline": "f8"})
    async with running(settings=settings) as (app, pilot):
        assert any("nonsense" in n.message for n in app._notifications)
        await pilot.press("a", "f8", "b")
        assert app.main.prompt.text == "a\nb"
        app.main.prompt.text = ""
        await ask(pilot, "explain")
        await pilot.press("f12")
        assert app.main.view.playing


async def test_themes_change_at_once() -> None:
    async with running() as (app, pilot):
        await ask(pilot, "explain")
        app.apply_ui(theme="dartree-light")
        await settle(pilot)
        assert not app.current_theme.dark
        assert app.client.settings.ui.theme == "dartree-light"
        app.theme = "nord"
        await settle(pilot)
        assert app.client.settings.ui.theme == "nord"


@pytest.mark.parametrize("key", ["left_square_bracket", "space"])
async def test_loading_a_model_while_browsing_or_playing_begins_anew(key: str) -> None:
    engine = FakeEngine()
    async with running(engine) as (app, pilot):
        await ask(pilot, "explain")
        await pilot.press("escape", key)
        await settle(pilot)
        assert app.main.view.at is not None
        engine.decoder = Other()
        await pilot.press("f4", "enter")
        await until(pilot, lambda: app.client.status == "ready")
        assert not app.client.store.marks
        assert app.main.view.following


async def test_what_did_not_load_is_loaded_again_by_a_key() -> None:
    async with running(Choosy()) as (app, pilot):
        await ask(pilot, "explain")
        assert app.client.load(bundle="typo")
        await until(pilot, lambda: app.client.status == "off")
        await pilot.press("ctrl+r")
        await until(pilot, lambda: app.client.status == "ready")
        assert len(app.client.conversation.messages) == 2
        assert app.client.store.marks


async def test_a_selected_node_stays_though_the_next_round_has_begun() -> None:
    decoder = FakeDecoder()
    events = decoder.stream("x", DecodeConfig(stages=True), session=decoder.session())
    async with running() as (app, pilot):
        store, drawing = app.client.store, app.main.drawing
        while len(store.marks) < 2:
            store.feed(next(events))
        await settle(pilot)
        shown = drawing.shown
        async with app.beat.painting:  # no frame comes between
            while store.partial is None or store.partial.phase != "expand":
                store.feed(next(events))
            drawing.select(0)
            await sleep(0.05)
        assert app.main.view.frozen
        store.feed(next(events))
        app.main.refresh_all()
        await settle(pilot)
        assert shown is not None
        assert shown.same_round(drawing.shown)
        assert drawing.node == 0


async def test_every_screen_opens_and_closes() -> None:
    async with running() as (app, pilot):
        await ask(pilot, "explain")
        await pilot.press("escape")
        for key in ("f1", "f2", "f4", "f9", "f3", "ctrl+o", "f10", "e", "ctrl+p"):
            await pilot.press(key)
            await settle(pilot)
            assert len(app.screen_stack) == 2, key
            await pilot.press(key) if key in ("f2", "f4") else await pilot.press("escape")
            await settle(pilot)
            assert len(app.screen_stack) == 1, key


async def test_watching_themes_and_looking_at_what_came_go_on_side_by_side() -> None:
    app = DartreeApp(FakeEngine, PLAIN, history=History(), watch=True)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.client.status == "ready")
        app.client.ask("explain")
        deadline = time.monotonic() + 20
        while "tokens/s" not in screen_text(app) and time.monotonic() < deadline:
            await asyncio.sleep(0.05)  # nobody but the app itself looks
        assert "tokens/s" in screen_text(app)


async def test_where_time_is_short_the_user_is_answered_at_once() -> None:
    async with running(slow(1.0)) as (app, pilot):
        await ask(pilot, "explain", finish=False)
        app.beat.pace = Pace(share=0.0)
        while not app.beat.pace.tight:  # what was saved up is spent
            await app.beat.tick()
        app.main.action_provenance()
        await app.beat.tick()
        assert app.main.query(SourceView).last().display
        app.client.tell("Nothing to be done.")
        await app.beat.tick()
        await pilot.pause(0.1)
        assert [notice.message for notice in app._notifications] == ["Nothing to be done."]
        assert app.client.store.generating


async def test_finding_a_token_selects_it() -> None:
    async with running() as (app, pilot):
        await ask(pilot, "explain")
        await pilot.press("escape", "slash")
        await pilot.press(*"target", "enter")
        await settle(pilot)
        main = app.main
        at = main.view.at
        assert at == next(app.client.store.find("target"))
        node = main.drawing.node
        assert node is not None
        done = app.client.store.round(at)
        token = done.bonus if node == BONUS else done.tree.token[node]
        assert "target" in app.client.store.vocab.text(token or 0)


async def test_comparing_shows_both_and_the_difference(snapshot: Snapshot) -> None:
    async with running() as (app, pilot):
        await ask(pilot, "explain")
        await pilot.press("escape", "c")
        await pilot.press("enter")
        await until(pilot, lambda: app.client.comparison is not None)
        await until(pilot, lambda: bool(app.client.comparison and app.client.comparison.over))
        text = screen_text(app)
        assert "the same tokens" in text
        assert "B takes" in text
        snapshot(app, "compare_120x40")
        await pilot.press("escape")
        assert len(app.screen_stack) == 1


async def test_comparing_is_not_slowed_by_its_own_table(monkeypatch: pytest.MonkeyPatch) -> None:
    tables: list[bool] = []

    def counted(comparison: Comparison, *rest: Any) -> tuple[Text, int]:
        tables.append(comparison.over)
        return table(comparison, *rest)

    monkeypatch.setattr("dartree_tui.screens.compare.table", counted)
    async with running(slow(0.04)) as (app, pilot):
        await pilot.press("escape", "c")
        await pilot.press("h", "i")
        paced: list[bool] = []
        due = app.beat.pace.due

        def watched(limited: bool) -> bool:
            if app.client.status == "comparing":
                paced.append(limited)
            return due(limited)

        monkeypatch.setattr(app.beat.pace, "due", watched)
        await pilot.press("enter")
        while app.client.status == "comparing":
            await app.settle()
            await app.beat.tick()
        await settle(pilot)
        assert any(paced)
        assert tables == [True]
        assert "first " in screen_text(app)


async def test_a_prompt_of_many_lines_is_compared_as_it_was_asked() -> None:
    async with running() as (app, pilot):
        text = "one\n\ttwo \x1b[31m"
        assert app.client.ask(text)
        await until(pilot, lambda: app.client.status == "ready")
        await pilot.press("escape", "c")
        await settle(pilot)
        field = app.screen.query_one(OneLine)
        assert field.value == "one↵⇥two ␛[31m"
        assert field.text == text
        await pilot.press("enter")
        await until(pilot, lambda: app.client.comparison is not None)
        assert app.client.comparison is not None
        assert app.client.comparison.prompt == text
        await pilot.press("end", "x")
        assert field.text == "one\n\ttwo ␛[31mx"


async def test_what_is_pasted_steers_no_terminal() -> None:
    pasted = "red \x1b[31m\x07 \x9b2J\r\nline\ttwo\rthree"
    async with running() as (app, pilot):
        app.post_message(Paste(pasted))
        await pilot.pause()
        assert app.main.prompt.text == "red [31m 2J\nline\ttwo\nthree"
        await pilot.press("escape", "c")
        field = app.screen.query_one(OneLine)
        app.post_message(Paste(pasted))
        await pilot.pause()
        assert field.value == "red [31m 2J↵line⇥two↵three"


async def test_saving_and_opening_from_the_keyboard() -> None:
    async with running() as (app, pilot):
        await pilot.press("ctrl+s")
        await ask(pilot, "explain")
        await pilot.press("ctrl+s")
        await settle(pilot)
        await pilot.press("ctrl+n")
        await settle(pilot)
        assert not app.client.store.turns
        await pilot.press("ctrl+o")
        assert app.screen.query_one(OptionList).option_count == 1
        await pilot.press("enter")
        await until(pilot, lambda: bool(app.client.store.turns) and app.client.store.turns[0].over)
        assert "Speculative decoding" in screen_text(app)
        assert app.client.store.round(0).tree


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
async def test_a_replay_needs_no_prompt(
    tmp_path: Path, size: tuple[int, int], snapshot: Snapshot
) -> None:
    engine = ReplayEngine(fake_trace(tmp_path / "run.jsonl"))
    async with running(engine, size=size) as (app, pilot):
        await pilot.press("left_square_bracket")
        await settle(pilot)
        assert not app.main.prompt.display
        assert "REPLAY" in screen_text(app)
        snapshot(app, f"replay_{size[0]}x{size[1]}")


async def test_an_hour_of_chat_keeps_few_widgets() -> None:
    async with running() as (app, pilot):
        decoder = FakeDecoder(answer="Short *answer*.")
        session = decoder.session()
        for _ in range(120):
            for event in decoder.stream("x", DecodeConfig(), session=session):
                app.client.store.feed(event)
        await settle(pilot)
        assert len(app.main.query(AnswerView)) <= 40
        assert len(app.client.store.turns) == 120


async def test_a_replay_says_at_once_that_it_cannot_compare(tmp_path: Path) -> None:
    engine = ReplayEngine(fake_trace(tmp_path / "run.jsonl"))
    async with running(engine) as (app, pilot):
        await pilot.press("c")
        await settle(pilot)
        assert app.screen is app.main
        assert any("A replay cannot compare" in n.message for n in app._notifications)


async def test_the_cursor_rests_while_cores_are_shared() -> None:
    async with running(slow(0.3)) as (app, pilot):
        assert app.main.prompt.cursor_blink
        await ask(pilot, "explain", finish=False)
        await until(pilot, lambda: not app.main.prompt.cursor_blink)
        assert app.client.status == "busy"
        await pilot.press("escape")
        await until(pilot, lambda: app.client.status == "ready")
        assert app.main.prompt.cursor_blink


async def test_the_top_line_follows_settings_and_size() -> None:
    async with running() as (app, pilot):
        assert "T=0" in screen_text(app).splitlines()[0]
        app.client.change(temperature=0.5)
        await settle(pilot)
        assert "T=0.5" in screen_text(app).splitlines()[0]
        await pilot.resize_terminal(80, 24)
        await settle(pilot)
        assert screen_text(app).splitlines()[0].rstrip().endswith("READY")

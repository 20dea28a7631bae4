from __future__ import annotations

from pathlib import Path

from dartree_core.config import DecodeConfig
from dartree_core.events import RoundDone
from dartree_tui.engines.fake_decoder import FakeDecoder
from dartree_tui.engines.replay import ReplayEngine
from dartree_tui.frames import frame, frame_count
from dartree_tui.partial import PartialRound
from dartree_tui.store import Store
from dartree_tui.viewpoint import Viewpoint
from tests.tui.driving import fake_trace, running, settle


def a_store(turns: int = 1, stages: bool = False) -> Store:
    store = Store()
    decoder = FakeDecoder()
    session = decoder.session()
    for _ in range(turns):
        for event in decoder.stream("x", DecodeConfig(stages=stages), session=session):
            store.feed(event)
    return store


def test_following_shows_a_finished_round_once_before_the_next_grows() -> None:
    store, view = Store(), Viewpoint()
    decoder = FakeDecoder()
    shown: list[str] = []
    for event in decoder.stream("x", DecodeConfig(stages=True), session=decoder.session()):
        store.feed(event)
        _, round_ = view.show(store)
        shown.append(type(round_).__name__)
    assert shown.count("RoundDone") >= len(store.marks)
    assert "PartialRound" in shown


def test_several_rounds_between_two_looks_show_the_newest() -> None:
    store, view = a_store(), Viewpoint()
    index, round_ = view.show(store)
    assert index == len(store.marks) - 1
    assert round_ == store.round(index)


def test_freezing_keeps_the_round_while_more_arrive() -> None:
    store, view = Store(), Viewpoint()
    decoder = FakeDecoder()
    events = list(decoder.stream("x", DecodeConfig(stages=True), session=decoder.session()))
    half = len(events) // 2
    for event in events[:half]:
        store.feed(event)
    view.freeze(store)
    before = view.show(store)
    rounds = len(store.marks)
    for event in events[half:]:
        store.feed(event)
    assert view.show(store) == before
    assert view.behind(store) == len(store.marks) - rounds > 0
    view.follow()
    assert view.show(store)[0] == len(store.marks) - 1


def test_freezing_holds_what_was_shown_though_newer_rounds_came() -> None:
    store, view = Store(), Viewpoint()
    decoder = FakeDecoder()
    events = decoder.stream("x", DecodeConfig(stages=True), session=decoder.session())
    while len(store.marks) < 2:
        store.feed(next(events))
    shown = view.show(store)
    assert isinstance(shown[1], RoundDone)
    while store.partial is None or store.partial.phase != "expand":
        store.feed(next(events))
    view.freeze(store)
    assert view.show(store) == shown
    assert view.at == 1


def test_a_frozen_round_under_way_does_not_grow() -> None:
    store, view = Store(), Viewpoint()
    decoder = FakeDecoder()
    events = decoder.stream("x", DecodeConfig(stages=True), session=decoder.session())
    while store.partial is None or store.partial.phase != "expand":
        store.feed(next(events))
    index, round_ = view.show(store)
    assert isinstance(round_, PartialRound)
    nodes = len(round_.tree)
    growing = store.partial
    store.feed(next(events))
    view.freeze(store)
    for _ in range(3):
        store.feed(next(events))
    assert len(growing.tree) > nodes
    assert view.show(store) == (index, round_)
    assert len(round_.tree) == nodes
    assert len(round_.considered) == 1


def test_moving_stays_within_what_there_is() -> None:
    store, view = a_store(turns=3), Viewpoint()
    last = len(store.marks) - 1
    view.move(store, -1)
    assert view.at == last - 1
    view.move(store, 500)
    assert view.at == last
    view.move(store, -500)
    assert view.at == 0
    view.turn(store, 1)
    assert view.at == store.turns[1].first_round
    view.move(store, 2)
    view.turn(store, -1)
    assert view.at == store.turns[1].first_round
    view.turn(store, -1)
    assert view.at == 0
    view.turn(store, -1)
    assert view.at == 0
    Viewpoint().move(Store(), 1)


def test_every_frame_is_a_sound_tree_and_the_last_is_the_round() -> None:
    store = a_store()
    for i in range(len(store.marks)):
        done = store.round(i)
        frames = [frame(done, k) for k in range(frame_count(done))]
        assert frames[-1] is done
        sizes = [len(f.tree) for f in frames]
        assert sizes == sorted(sizes)
        assert sizes[0] == 1 or len(frames) == 1
        for f in frames:
            assert not list(f.tree.problems())
        if len(frames) > 1:
            pruned = frames[-2]
            assert isinstance(pruned, PartialRound)
            assert tuple(pruned.tree.token) == tuple(done.tree.token)
            assert tuple(pruned.tree.kept) == tuple(done.tree.kept)


def test_stepping_walks_through_the_frames_of_round_after_round() -> None:
    store, view = a_store(), Viewpoint()
    view.go(store, 0)
    seen: list[tuple[int, bool]] = []
    for _ in range(frame_count(store.round(1)) + 1):
        view.next_stage(store)
        index, round_ = view.show(store)
        seen.append((index, isinstance(round_, RoundDone)))
    count = frame_count(store.round(1))
    assert [done for _, done in seen[:count]] == [False] * (count - 1) + [True]
    assert {index for index, _ in seen[:count]} == {1}
    assert seen[count][0] == 2


def test_playing_takes_each_rounds_time_and_stops_at_the_end() -> None:
    store, view = a_store(), Viewpoint()
    view.play(store)
    assert view.at == 0
    assert not view.tick(store, 0.01)
    assert view.tick(store, 10)
    assert view.at == 1
    for _ in range(len(store.marks)):
        view.tick(store, 10)
    assert view.at == len(store.marks) - 1
    assert not view.playing
    view.play(store)
    assert view.at == 0


async def test_a_replay_whose_file_changes_stays_on_what_it_has(tmp_path: Path) -> None:
    path = fake_trace(tmp_path / "run.jsonl")
    async with running(ReplayEngine(path)) as (app, pilot):
        store, view = app.client.store, app.main.view
        await pilot.press("left_square_bracket")
        await settle(pilot)
        shown, told = view.at, len(app._notifications)
        for other in set(store._recent) - {shown}:
            del store._recent[other]
        path.write_bytes(b"{}\n" * 2000)
        await pilot.press("left_curly_bracket")
        await settle(pilot)
        await pilot.press("left_square_bracket", "n", "space")
        await settle(pilot)
        assert view.at == shown
        assert not view.playing
        assert app.main.drawing.shown is not None
        assert len(app._notifications) == told + 1
        assert app.is_running

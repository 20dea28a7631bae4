from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings

from dartree_core.config import DecodeConfig
from dartree_core.events import (
    Calibrated,
    Event,
    RoundDone,
    RunFailed,
    RunStarted,
    TurnFinished,
    TurnStarted,
    encode,
)
from dartree_core.metrics import RunningMetrics
from dartree_core.pieces import TokenText
from dartree_core.trace import to_line
from dartree_tui.engines.fake_decoder import FakeDecoder
from dartree_tui.spool import Spool
from dartree_tui.store import Store
from dartree_tui.vocab import Vocab
from tests.core.strategies import VOCAB_SIZE, runs, token_text


def fed(events: list[Event], store: Store | None = None) -> Store:
    store = store or Store()
    for event in events:
        store.feed(event)
    return store


def fake_events(seed: int = 0, **changes: object) -> list[Event]:
    decoder = FakeDecoder(seed=seed)
    config = DecodeConfig(detail="full").with_changes(**changes)
    return list(decoder.stream("explain", config, session=decoder.session()))


@given(runs())
@settings(max_examples=60)
def test_text_spans_and_metrics_are_those_of_the_stream(events: list[Event]) -> None:
    store = Store()
    store.vocab.words.update({t: token_text(t) for t in range(VOCAB_SIZE)})
    turn_metrics = RunningMetrics()
    finished: list[TurnFinished] = []
    for event in events:
        if isinstance(event, TurnStarted):
            turn_metrics = RunningMetrics()
        turn_metrics.update(event)
        store.feed(event)
        if isinstance(event, TurnFinished):
            finished.append(event)
            turn = store.turn
            assert turn is not None
            assert turn.metrics.summary() == turn_metrics.summary()
    ended = [t for t in store.turns if t.finished is not None]
    assert [t.text for t in ended] == [f.text for f in finished]
    for turn in store.turns:
        ends = [(p.start, p.end) for p in turn.pieces]
        assert all(start < end for start, end in ends)
        assert all(a[1] == b[0] for a, b in pairwise(ends))
        for piece in turn.pieces:
            index = store.round_at(turn, piece.start)
            if piece.round < 0:
                assert index is None
            else:
                assert index is not None
                start, end = store.marks[index].span
                assert start <= piece.start
                assert piece.end <= end
    rounds = [e for e in events if isinstance(e, RoundDone)]
    assert len(store.marks) == len(rounds) == len(store.heights)
    assert [store.round(i) for i in range(len(rounds))] == rounds


def test_a_partial_round_grows_into_the_finished_one() -> None:
    store = Store()
    phases: list[str] = []
    for event in fake_events(stages=True):
        if isinstance(event, RoundDone) and store.partial is not None:
            partial = store.partial
            assert partial.phase == "verify"
            assert partial.tree.token == event.tree.token
            assert partial.tree.parent == event.tree.parent
            assert partial.tree.kept == event.tree.kept
            assert partial.tree.state == event.tree.state
            assert partial.accepted == event.accepted
            assert event.bonus in (None, partial.bonus)  # None: the turn ended before it
            assert not list(partial.tree.problems())
        store.feed(event)
        if store.partial is not None:
            phases.append(store.partial.phase)
            assert not list(store.partial.tree.problems())
    assert {"draft", "expand", "prune", "verify"} == set(phases)
    assert store.partial is None


def test_only_recent_rounds_stay_in_memory(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "run.jsonl")
    store = Store(Vocab(), spool.round, keep=4)
    decoder = FakeDecoder()
    expected: list[RoundDone] = []
    for event in decoder.stream("x", DecodeConfig(), session=decoder.session()):
        raw = to_line(encode(event))
        store.feed(event, spool.append(event, raw, {}))
        if isinstance(event, RoundDone):
            expected.append(event)
    assert len(expected) > 10
    for i, done in enumerate(expected):
        again = store.round(i)
        assert again.tree.token == done.tree.token
        assert again.text_delta == done.text_delta
        assert len(store._recent) <= 4
    spool.close()


def test_without_a_spool_nothing_is_forgotten() -> None:
    store = Store(keep=2)
    fed(fake_events(), store)
    assert store.round(0).round == 0


def test_finding_rounds() -> None:
    decoder = FakeDecoder()
    store = Store()
    store.vocab.words.update({i: TokenText(w) for i, w in enumerate(decoder.words)})
    fed(fake_events(), store)
    everything = list(store.find())
    assert everything == list(range(len(store.marks)))
    hits = list(store.find("drafter"))
    assert hits
    assert set(hits) < set(everything)
    wanted = store.vocab.find("drafter")
    for i in everything:
        done = store.round(i)
        assert (i in hits) == bool(wanted & {*done.tree.token[1:], *done.tokens})
    worst = list(store.find(worst_first=True))
    lengths = [store.marks[i].accepted for i in worst]
    assert lengths == sorted(lengths)
    fates = {m.fate for m in store.marks if m.fate}
    for fate in fates:
        assert {store.marks[i].fate for i in store.find(fate=fate)} == {fate}
    assert list(store.find("no such token")) == []


def test_numbers_of_a_place_in_the_run() -> None:
    events = fake_events()
    store = fed(events)
    assert math.isnan(store.stats().baseline)
    store.feed(Calibrated("ar", 50.0, 24, 0.48))
    stats = store.stats()
    assert stats.baseline == 50.0
    assert stats.rounds == len(store.marks)
    assert stats.speedup == pytest.approx(stats.average / 50.0)
    first = store.stats(0)
    assert first.accepted_now == len(store.round(0).accepted) - 1
    assert Store().stats().rounds == 0


def test_a_failure_ends_the_turn_and_keeps_its_text() -> None:
    events = fake_events()
    store = fed(events[: len(events) // 2])
    text = store.turns[-1].text
    store.feed(RunFailed("Out of memory.", "Use a smaller model."))
    assert store.turns[-1].over
    assert store.turns[-1].text == text
    assert store.failed is not None
    assert not store.generating


def test_an_engine_that_counts_turns_anew_is_no_confusion() -> None:
    store = fed([*fake_events(), *fake_events(seed=1)])
    assert [t.index for t in store.turns] == [0, 1]
    first, second = store.turns
    assert second.first_round == first.rounds
    assert store.turn_of(second.first_round) is second
    assert store.rounds_of(second) == range(first.rounds, len(store.marks))


def test_a_stream_joined_in_the_middle_waits_for_a_turn() -> None:
    events = fake_events()
    done = next(e for e in events if isinstance(e, RoundDone))
    store = fed([RunStarted(), done])
    assert not store.turns
    assert not store.marks

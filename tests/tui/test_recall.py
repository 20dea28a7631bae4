"""Saved conversations, opened again: nothing of them is lost, whatever comes next."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, ClassVar

from dartree_core.events import Calibrated
from dartree_core.trace import TraceIndex, TraceReader
from dartree_core.worker_protocol import Generate
from dartree_tui.client import Client
from dartree_tui.conversation import Saved, saved
from dartree_tui.engines import Lost
from dartree_tui.engines.fake import FakeEngine
from dartree_tui.engines.fake_decoder import ANSWER, FakeDecoder
from tests.tui.driving import PATIENCE, PLAIN, slow, wait
from tests.tui.test_client import Fragile, answered, client


class Other(FakeDecoder):
    """Another target, whose token ids mean something else."""

    facts: ClassVar[dict[str, Any]] = {**FakeDecoder.facts, "target": {"name": "other-1B"}}

    def __init__(self) -> None:
        super().__init__(answer="Something else altogether, at length: " + "so on " * 20)


def reopened(made: Client, chosen: Saved | None = None) -> Client:
    assert made.open(chosen or next(iter(saved())))
    wait(made, lambda: made._recall is None)
    return made


def trees(made: Client) -> list[tuple[int, ...]]:
    return [tuple(made.store.round(i).tree.token) for i in range(len(made.store.marks))]


def trace() -> Path:
    return next(iter(saved())).trace


def test_what_is_opened_and_gone_on_with_keeps_its_trees() -> None:
    made = client(settings=PLAIN)
    answered(made, "explain")
    assert made.save()
    first = trees(made)
    made.close()

    again = reopened(client(settings=PLAIN))
    assert trees(again) == first
    answered(again, "and more")
    both = trees(again)
    assert both[: len(first)] == first
    assert len(both) > len(first)
    again.close()

    third = reopened(client(settings=PLAIN))
    assert trees(third) == both
    assert [t.replaced for t in third.store.turns] == [False, False]
    words = [third.store.vocab.shown(token) for token in both[0]]
    assert not any(word.startswith("#") for word in words)
    third.close()


def test_rounds_that_left_memory_come_back_after_opening() -> None:
    made = client(settings=PLAIN)
    answered(made, "explain")
    made.save()
    first = trees(made)
    made.close()
    again = client(settings=PLAIN)
    assert again.open(next(iter(saved())))
    again.store._keep = 4
    wait(again, lambda: again._recall is None)
    assert len(again.store._recent) == 4 < len(first)
    assert trees(again) == first
    again.close()


def test_what_was_measured_now_outlives_what_was_measured_then() -> None:
    made = client()
    answered(made, "explain")
    made.save()
    made.close()
    again = client()
    now = again.store.baseline
    assert now is not None
    reopened(again)
    assert again.store.baseline is now
    answered(again, "and more")
    again.close()
    assert [type(e) for e in TraceReader(trace())].count(Calibrated) == 1
    unmeasured = reopened(client(settings=PLAIN))
    assert unmeasured.store.baseline == now
    unmeasured.close()


def test_nothing_is_saved_over_a_conversation_that_is_half_read() -> None:
    made = client(settings=PLAIN)
    answered(made, "explain")
    made.save()
    before = trace().read_bytes()
    assert made.open(next(iter(saved())))
    assert made.save() is None
    assert trace().read_bytes() == before
    made.close()


def test_a_trace_that_cannot_be_read_is_left_where_it_is() -> None:
    made = client(settings=PLAIN)
    answered(made, "explain")
    made.save()
    path = trace()
    newer = path.read_bytes().replace(b'"schema":"', b'"schema":"99', 1)
    damaged = path.read_bytes() + b"nonsense\n"
    for content in (newer, damaged):
        path.write_bytes(content)
        reopened(made)
        assert made.store.turns[0].text == ANSWER
        answered(made, "and more")
        assert path.read_bytes() == content
    made.close()


def test_a_copy_of_words_alone_is_a_conversation_like_any_other() -> None:
    made = client(settings=PLAIN)
    answered(made, "explain")
    made.save()
    trace().unlink()
    reopened(made)
    answered(made, "and more")
    made.close()
    again = reopened(client(settings=PLAIN))
    assert [t.text for t in again.store.turns] == [ANSWER, ANSWER]
    assert [t.replaced for t in again.store.turns] == [False, False]
    assert [bool(t.rounds) for t in again.store.turns] == [False, True]
    again.close()
    assert len(TraceIndex(trace()).turns) == 2


def test_the_trees_of_another_target_are_read_but_not_gone_on_with() -> None:
    made = client(FakeEngine(), settings=PLAIN.changed("decode", max_new_tokens=20))
    answered(made, "explain")
    assert made.save()
    first = trees(made)
    words = [made.store.vocab.shown(token) for token in first[0]]
    before = trace().read_bytes()
    made.close()

    engine = FakeEngine(Other())
    again = client(engine, settings=PLAIN)
    answered(again, "hello")
    live = dict(again.store.vocab.words)
    reopened(again)
    assert any("fake-135M" in n.text for n in again.notices)
    assert trees(again) == first
    assert [again.store.vocab.shown(token) for token in first[0]] == words
    assert not again.go_on()
    assert "fake-135M" in again.notices[-1].text

    answered(again, "and more")
    request = engine.requests[-1]
    assert isinstance(request, Generate)
    said = [m["content"] for m in request.prompt]
    assert (said[0], said[-1]) == ("explain", "and more")
    assert [bool(t.rounds) for t in again.store.turns] == [False, True]
    assert {t: again.store.vocab.words[t] for t in live} == live
    assert again.conversation.folder is None
    assert trace().read_bytes() == before
    folder = again.save()
    assert folder is not None
    again.close()
    chosen = next(s for s in saved() if s.folder == folder)
    copy = reopened(client(FakeEngine(Other()), settings=PLAIN), chosen)
    assert [bool(t.rounds) for t in copy.store.turns] == [False, True]
    assert not any(t.replaced for t in copy.store.turns)
    assert copy._foreign is None
    copy.close()


def test_a_question_that_waits_does_not_take_foreign_trees_away() -> None:
    made = client(settings=PLAIN)
    answered(made, "explain")
    made.save()
    made.close()
    again = client(FakeEngine(Other()), settings=PLAIN)
    assert again.open(next(iter(saved())))
    assert again.ask("too early")
    wait(again, lambda: again._recall is None)
    assert again.unsent == "too early"
    assert again.store.marks
    again.close()


def test_trees_that_meet_their_own_target_are_gone_on_with() -> None:
    made = client(settings=PLAIN.changed("decode", max_new_tokens=20))
    answered(made, "explain")
    made.save()
    first = trees(made)
    made.close()
    engine = FakeEngine(Other())
    again = client(engine, settings=PLAIN)
    answered(again, "hello")
    reopened(again)
    assert again._foreign is not None
    engine.decoder = FakeDecoder()
    assert again.load(bundle="demo")
    wait(again, lambda: again.status == "ready")
    assert trees(again) == first
    assert again.go_on()
    wait(again, lambda: again.status == "ready")
    assert again.conversation.messages[1].content == ANSWER
    again.close()


def test_comparing_beside_foreign_trees_uses_the_words_of_the_loaded_target() -> None:
    made = client(settings=PLAIN)
    answered(made, "explain")
    made.save()
    made.close()
    again = reopened(client(FakeEngine(Other()), settings=PLAIN))
    theirs = dict(again.store.vocab.words)
    assert again.compare("hello", again.config, again.config)
    wait(again, lambda: again.status == "ready")
    assert again.store.vocab.words == theirs
    assert again.comparison is not None
    side = again.comparison.sides[0].store
    assert side.vocab.text(side.tokens_of(side.turns[0])[0]) == "Something"
    again.close()


def test_a_continued_answer_is_one_answer_after_opening_too() -> None:
    made = client(settings=PLAIN.changed("decode", max_new_tokens=20))
    answered(made, "explain")
    assert made.go_on()
    wait(made, lambda: made.status == "ready")
    made.save()
    made.close()
    again = reopened(client(settings=PLAIN))
    assert [t.replaced for t in again.store.turns] == [False, False]
    assert [t.continues for t in again.store.turns] == [None, 0]
    assert again.store.turns[1].prompt == "explain"
    assert again.regenerate()
    wait(again, lambda: again.status == "ready")
    assert [t.replaced for t in again.store.turns] == [True, True, False]
    again.close()


def test_an_answer_cut_by_a_lost_worker_can_be_gone_on_with_after_opening() -> None:
    engine = Fragile(FakeDecoder(0.05))
    made = client(engine, settings=PLAIN)
    made.ask("explain")
    wait(made, lambda: len(made.store.marks) >= 2)
    engine.die()
    wait(made, lambda: made.status == "lost")
    assert made.save()
    made.close()
    again = reopened(client(settings=PLAIN))
    assert again.cut_off
    failed = again.store.turns[0].failed
    assert failed is not None
    assert "SIGSEGV" in failed.message
    assert again.go_on()
    wait(again, lambda: again.status == "ready")
    assert again.conversation.messages[1].content == ANSWER
    again.close()


def test_a_trace_that_ends_in_a_turn_can_be_gone_on_with_after_opening() -> None:
    made = client(slow(0.05), settings=PLAIN)
    made.ask("explain")
    wait(made, lambda: len(made.store.marks) >= 2)
    made.stop()
    wait(made, lambda: made.status == "ready")
    made.save()
    made.close()
    path = trace()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(line for line in lines if b'"TurnFinished"' not in line))
    again = reopened(client(settings=PLAIN))
    assert not again.store.generating
    assert again.go_on()
    wait(again, lambda: again.status == "ready")
    assert again.conversation.messages[1].content == ANSWER
    again.close()


def test_losing_the_worker_while_a_conversation_is_read_breaks_nothing_off() -> None:
    made = client(settings=PLAIN)
    answered(made, "explain")
    made.save()
    made.close()
    again = client(settings=PLAIN)
    assert again.open(next(iter(saved())))
    recall = again._recall
    assert recall is not None
    deadline = time.monotonic() + PATIENCE
    while not again.store.generating:
        recall.pump(1e-5)
        assert time.monotonic() < deadline
    again._ended(Lost("The worker ended unexpectedly."))
    wait(again, lambda: again._recall is None)
    assert again.status == "lost"
    assert again.store.turns[0].failed is None
    assert again.store.turns[0].text == ANSWER
    again.close()

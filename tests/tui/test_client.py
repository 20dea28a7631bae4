from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dartree_core.config import DecodeConfig
from dartree_core.errors import CapacityError, ConfigError
from dartree_core.events import Event, LoadProgress, RoundDone
from dartree_core.trace import TraceReader
from dartree_core.worker_protocol import Generate, Load, Set
from dartree_tui.client import Client
from dartree_tui.conversation import saved
from dartree_tui.engines import Engine, Intake, Lost
from dartree_tui.engines.fake import FakeEngine
from dartree_tui.engines.fake_decoder import ANSWER, FakeDecoder
from dartree_tui.engines.replay import ReplayEngine
from dartree_tui.settings import Settings
from tests.tui.driving import fake_trace, slow, wait


class Fragile(FakeEngine):
    """A fake engine that can die."""

    def start(self, intake: Intake) -> None:
        self.intake = intake
        super().start(intake)

    def die(self) -> None:
        self.close()
        self.intake.end(Lost("The worker ended unexpectedly, by SIGSEGV.", ("oh", "no")))


def client(
    *engines: Engine,
    settings: Settings | None = None,
    record: Path | None = None,
    ready: bool = True,
) -> Client:
    left = list(engines) or [FakeEngine()]
    made = Client(lambda: left.pop(0), settings or Settings(), record)
    made.start()
    if ready:
        wait(made, lambda: made.status == "ready")
    return made


def answered(made: Client, text: str) -> None:
    assert made.ask(text)
    wait(made, lambda: made.status == "ready")


def test_loading_then_measuring_then_ready() -> None:
    made = client(ready=False)
    assert made.status == "loading"
    seen = set()

    def ready() -> bool:
        seen.add(made.status)
        return made.status == "ready"

    wait(made, ready)
    assert "calibrating" in seen
    assert made.models["target"] == {"name": "fake-135M"}
    assert made.store.baseline is not None
    made.close()


def test_a_question_and_its_answer() -> None:
    made = client()
    answered(made, "explain")
    assert [m.role for m in made.conversation.messages] == ["user", "assistant"]
    assert made.conversation.messages[1].content == ANSWER
    assert made.store.turns[0].text == ANSWER
    answered(made, "again")
    assert len(made.conversation.prompt()) == 4
    made.close()


def test_the_system_prompt_stands_first() -> None:
    engine = FakeEngine()
    made = client(engine, settings=Settings().changed("chat", system_prompt="Be brief."))
    answered(made, "explain")
    request = next(r for r in engine.requests if isinstance(r, Generate))
    assert request.prompt[0] == {"role": "system", "content": "Be brief."}
    made.close()


def test_a_question_waits_for_the_model() -> None:
    made = client(slow(0.0, load_seconds=0.2), ready=False)
    assert made.ask("early")
    assert made.waiting == "early"
    assert not made.ask("another")
    wait(made, lambda: made.status == "ready" and len(made.store.turns) == 1)
    assert made.conversation.messages[0].content == "early"
    made.close()


def test_a_question_interrupts_the_measuring() -> None:
    made = client(slow(0.02), ready=False)
    wait(made, lambda: made.status == "calibrating")
    assert made.ask("now")
    wait(made, lambda: made.status == "busy")
    assert made.store.baseline is None
    made.close()


def test_a_failed_load_keeps_the_question() -> None:
    made = client(slow(0.0, fail_load="The device is out of memory."), ready=False)
    made.ask("keep me")
    wait(made, lambda: made.status == "off")
    assert made.unsent == "keep me"
    assert "out of memory" in made.notices[0].text
    assert "smaller model" in made.notices[0].text
    assert not made.ask("still nothing")
    made.close()


def test_a_failed_turn_keeps_question_and_conversation() -> None:
    made = client()
    answered(made, "explain")
    made.ask("please fail")
    wait(made, lambda: made.status == "ready")
    assert made.unsent == "please fail"
    assert len(made.conversation.messages) == 2
    assert "does not fit" in made.notices[-1].text
    answered(made, "explain")
    assert len(made.conversation.messages) == 4
    made.close()


def test_stopping_keeps_what_was_said() -> None:
    made = client(slow(0.02))
    made.ask("explain")
    wait(made, lambda: len(made.store.marks) >= 3)
    assert made.stop()
    wait(made, lambda: made.status == "ready")
    said = made.conversation.messages[-1].content
    assert ANSWER.startswith(said)
    assert said != ANSWER
    assert not made.stop()
    made.close()


def test_asking_again_replaces_the_answer() -> None:
    made = client()
    answered(made, "explain")
    assert made.regenerate()
    wait(made, lambda: made.status == "ready")
    assert len(made.conversation.messages) == 2
    assert [t.replaced for t in made.store.turns] == [True, False]
    assert made.conversation.messages[1].turn == 1
    made.new_conversation()
    assert not made.regenerate()
    made.close()


class Moody(FakeDecoder):
    """A decoder that can refuse a turn before it says anything."""

    refuses = False

    def stream(self, prompt: Any, config: DecodeConfig, **options: Any) -> Iterator[Event]:
        if self.refuses:
            raise CapacityError("The prompt does not fit any more.")
        return super().stream(prompt, config, **options)


def test_an_answer_stays_when_asking_again_brings_none() -> None:
    decoder = Moody()
    made = client(FakeEngine(decoder))
    answered(made, "explain")
    before = list(made.conversation.messages)
    decoder.refuses = True
    assert made.regenerate()
    assert made.store.turns[0].replaced
    version = made.store.version
    wait(made, lambda: made.status == "ready")
    assert made.conversation.messages == before
    assert not made.store.turns[0].replaced
    assert made.store.version > version, "or it would not be painted"
    assert made.unsent is None, "the question stands above its answer"
    decoder.refuses = False
    assert made.regenerate()
    wait(made, lambda: made.status == "ready")
    assert [t.replaced for t in made.store.turns] == [True, False]
    made.close()


def test_an_answer_stays_when_the_worker_dies_asking_again() -> None:
    engine = Fragile()
    made = client(engine)
    answered(made, "explain")
    before = list(made.conversation.messages)
    made.step_mode(True)
    engine.die()  # nothing of the new answer will come
    assert made.regenerate()
    wait(made, lambda: made.status == "lost")
    assert made.conversation.messages == before
    assert not made.store.turns[0].replaced
    assert made.unsent is None
    made.close()


def test_asking_again_replaces_all_of_an_answer_that_was_gone_on_with() -> None:
    made = client()
    made.change(max_new_tokens=20)
    answered(made, "explain")
    assert made.go_on()
    wait(made, lambda: made.status == "ready")
    assert made.conversation.messages[1].turns == (0, 1)
    assert made.regenerate()
    wait(made, lambda: made.status == "ready")
    assert [t.replaced for t in made.store.turns] == [True, True, False]
    made.close()


def test_changes_go_to_the_running_turn() -> None:
    engine = slow(0.03)
    made = client(engine)
    made.ask("explain")
    wait(made, lambda: len(made.store.marks) >= 2)
    made.change(budget=3)
    wait(made, lambda: made.status == "ready")
    assert made.store.round(len(made.store.marks) - 1).budget == 3
    assert any(isinstance(r, Set) for r in engine.requests)
    with pytest.raises(ConfigError):
        made.change(budget=0)
    assert made.settings.decode.budget == 3
    made.close()


def test_step_mode_holds_the_decoder() -> None:
    made = client()
    made.step_mode(True)
    made.ask("explain")
    wait(made, lambda: made.store.turn is not None and made.store.turn.prefill is not None)
    time.sleep(0.1)
    made.pump()
    assert not made.store.marks
    assert made.store.partial is None
    made.step("stage")
    wait(made, lambda: made.store.partial is not None)
    assert made.store.partial is not None
    assert made.store.partial.phase == "draft"
    made.step("round")
    wait(made, lambda: len(made.store.marks) == 1)
    made.step_mode(False)
    wait(made, lambda: made.status == "ready")
    made.close()


def test_a_lost_worker_is_replaced_and_nothing_is_lost() -> None:
    engine = Fragile(FakeDecoder(0.05))
    made = client(engine, FakeEngine())
    made.ask("explain")
    wait(made, lambda: len(made.store.marks) >= 2)
    rounds = len(made.store.marks)
    engine.die()
    wait(made, lambda: made.status == "lost")
    assert made.lost is not None
    assert made.lost.tail == ("oh", "no")
    said = made.store.turns[0].text
    assert [m.content for m in made.conversation.messages] == ["explain", said]
    assert made.unsent is None, "the question was answered in part, and stays"
    assert made.store.turns[0].failed is not None
    assert not made.ask("x")
    assert "ctrl+r" in made.notices[-1].text
    made.restart()
    wait(made, lambda: made.status == "ready")
    answered(made, "explain")
    assert len(made.store.marks) > rounds
    assert made.store.turns[1].text == ANSWER
    assert made.store.round(0).round == 0
    made.close()


def test_a_loss_while_loading_keeps_the_waiting_question() -> None:
    engine = Fragile(FakeDecoder(), load_seconds=5)
    made = client(engine, ready=False)
    made.ask("wait for it")
    engine.die()
    wait(made, lambda: made.status == "lost")
    assert made.unsent == "wait for it"
    made.close()


class Choosy(FakeEngine):
    """A fake engine that has another model, too, and none of any other name."""

    def _load(
        self, request: Load, progress: Callable[[LoadProgress], None]
    ) -> tuple[FakeDecoder, dict[str, Any]]:
        if request.bundle not in ("demo", "other"):
            raise CapacityError(f"There is no {request.bundle}.", "Check the name.")
        decoder, facts = super()._load(request, progress)
        if request.bundle == "other":
            facts = {**facts, "target": {"name": "other-1B"}}
        return decoder, facts


def test_another_model_starts_another_conversation() -> None:
    engine = Choosy()
    made = client(engine)
    answered(made, "explain")
    assert made.load(bundle="other")
    wait(made, lambda: made.status == "ready")
    assert not made.store.turns
    assert [r.bundle for r in engine.requests if isinstance(r, Load)] == ["demo", "other"]
    made.close()


def test_a_failed_load_changes_nothing() -> None:
    made = client(Choosy())
    answered(made, "explain")
    talk, store = made.conversation, made.store
    assert made.load(bundle="typo")
    wait(made, lambda: made.status == "off")
    assert made.conversation is talk
    assert len(talk.messages) == 2
    assert made.store is store
    assert made.settings.engine.bundle == "demo"
    assert "ctrl+r loads demo" in made.notices[-1].text
    assert made.load()
    wait(made, lambda: made.status == "ready")
    assert made.store is store
    made.close()


def test_the_same_target_goes_on_with_the_conversation() -> None:
    made = client()
    answered(made, "explain")
    assert made.load(device="cpu")
    assert made.settings.engine.device == "cpu"
    wait(made, lambda: made.status == "ready")
    answered(made, "and more")
    assert [t.text for t in made.store.turns] == [ANSWER, ANSWER]
    assert len(made.conversation.messages) == 4
    made.close()


def test_a_worker_that_cannot_be_restarted_takes_no_conversation_away() -> None:
    engine = Fragile()
    made = client(engine, FakeEngine(fail_load="The device is out of memory."))
    answered(made, "explain")
    engine.die()
    wait(made, lambda: made.status == "lost")
    made.restart()
    wait(made, lambda: made.status == "off")
    assert len(made.conversation.messages) == 2
    assert isinstance(made.engine, FakeEngine)
    made.engine._fail_load = ""
    assert made.load(bundle="demo", target="")
    wait(made, lambda: made.status == "ready")
    answered(made, "and more")
    assert len(made.store.turns) == 2
    made.close()


def compared(made: Client, left: DecodeConfig, right: DecodeConfig) -> None:
    assert made.compare("explain", left, right)
    comparison = made.comparison
    wait(made, lambda: comparison is not None and comparison.over and made.status == "ready")


def test_comparing_leaves_the_conversation_alone(tmp_path: Path) -> None:
    made = client(record=tmp_path / "run.jsonl")
    answered(made, "explain")
    rounds = len(made.store.marks)
    compared(made, DecodeConfig(), DecodeConfig(method="ar"))
    comparison = made.comparison
    assert comparison is not None
    tree, plain = comparison.sides
    assert tree.tokens == plain.tokens
    assert comparison.divergence() is None
    assert plain.rounds == len(plain.tokens) - 1 > tree.rounds
    assert len(made.store.marks) == rounds
    answered(made, "explain")
    made.close()
    events = list(TraceReader(tmp_path / "run.jsonl"))
    assert sum(type(e).__name__ == "RoundDone" for e in events) == len(made.store.marks)


def test_rows_of_a_comparison_cut_at_every_round() -> None:
    made = client()
    compared(made, DecodeConfig(), DecodeConfig(method="domino"))
    comparison = made.comparison
    assert comparison is not None
    rows = list(comparison.rows())
    assert rows[0].start == 0
    assert all(a.end == b.start for a, b in pairwise(rows))
    assert rows[-1].end == len(comparison.sides[0].tokens)
    for side in (0, 1):
        begun = [row.rounds[side] for row in rows if row.opens[side]]
        assert begun == [None, *range(comparison.sides[side].rounds)]
    made.close()


def test_a_comparison_can_be_stopped() -> None:
    made = client(slow(0.02))
    made.compare("explain", DecodeConfig(), DecodeConfig(method="ar"))
    assert made.comparison is not None
    wait(made, lambda: made.comparison is not None and made.comparison.sides[0].rounds > 1)
    made.stop()
    wait(made, lambda: made.status == "ready")
    assert made.comparison.over
    assert made.comparison.sides[1].rounds == 0
    answered(made, "explain")
    made.close()


def test_a_comparison_runs_through_in_step_mode_too() -> None:
    made = client()
    made.step_mode(True)
    compared(made, DecodeConfig(), DecodeConfig(method="ar"))
    assert not made.stepping
    assert any("Step mode" in n.text for n in made.notices)
    made.close()


def test_saved_with_its_trees_and_opened_again() -> None:
    made = client()
    answered(made, "explain")
    made.regenerate()
    wait(made, lambda: made.status == "ready")
    folder = made.save()
    assert folder is not None
    marks = len(made.store.marks)
    tree = made.store.round(3).tree
    answered(made, "and more")  # a saved conversation keeps itself up to date
    made.close()

    again = client()
    chosen = next(iter(saved()))
    assert (chosen.title, chosen.answers) == ("explain", 2)
    assert again.open(chosen)
    wait(again, lambda: len(again.store.turns) == 3 and again.store.turns[-1].over)
    assert again.ask("go on")
    wait(again, lambda: again.status == "ready" and len(again.conversation.messages) == 6)
    assert [t.replaced for t in again.store.turns] == [True, False, False, False]
    assert again.store.round(3).tree.token == tree.token
    assert len(again.store.marks) > marks
    assert len(again.conversation.messages) == 6
    again.close()


def test_a_conversation_whose_trace_is_gone_keeps_its_words() -> None:
    made = client()
    answered(made, "explain")
    folder = made.save()
    assert folder is not None
    (folder / "trace.jsonl").unlink()
    assert made.open(next(iter(saved())))
    assert made.store.turns[0].text == ANSWER
    assert any("trees are gone" in n.text for n in made.notices)
    made.close()


def test_tokens_keep_their_words_in_a_new_conversation(tmp_path: Path) -> None:
    made = client(record=tmp_path / "run.jsonl")
    answered(made, "one")
    words = [made.store.vocab.shown(t) for t in made.store.round(0).tree.token]
    made.new_conversation()
    answered(made, "one")
    assert [made.store.vocab.shown(t) for t in made.store.round(0).tree.token] == words
    assert not any(word.startswith("#") for word in words)
    made.close()
    reader = TraceReader(tmp_path / "run-2.jsonl")
    told = {t for event in reader if isinstance(event, RoundDone) for t in event.tree.token}
    assert told <= set(reader.vocab), "the second file stands alone"


def test_a_new_conversation_is_recorded_beside_the_first(tmp_path: Path) -> None:
    made = client(record=tmp_path / "run.jsonl.gz")
    answered(made, "one")
    made.new_conversation()
    answered(made, "two")
    made.close()
    for name, prompt in (("run.jsonl.gz", "one"), ("run-2.jsonl.gz", "two")):
        events = list(TraceReader(tmp_path / name))
        assert events[0].prompt == prompt  # type: ignore[union-attr]
        assert any(type(e).__name__ == "Calibrated" for e in events)
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600


def test_a_replay_shows_and_refuses(tmp_path: Path) -> None:
    path = fake_trace(tmp_path / "run.jsonl")
    made = Client(lambda: ReplayEngine(path), Settings())
    made.start()
    wait(made, lambda: made.complete)
    assert made.status == "replay"
    assert made.store.turns[0].text == ANSWER
    assert made.models["target"]["name"] == "fake-135M"
    assert not made.ask("hello?")
    assert "replay" in made.notices[-1].text
    refused: list[Callable[[], bool]] = [made.regenerate, made.calibrate, made.new_conversation]
    assert not any(act() for act in refused)
    made.close()
    assert path.exists()


@pytest.mark.parametrize("after", ["RoundDone", "BlockDrafted"])
@pytest.mark.parametrize("piped", [False, True])
def test_a_replay_that_breaks_off_is_over(tmp_path: Path, after: str, piped: bool) -> None:
    path = fake_trace(tmp_path / "run.jsonl", stages=True)
    lines = path.read_bytes().splitlines(keepends=True)
    last = max(i for i, line in enumerate(lines) if f'"kind":"{after}"'.encode() in line)
    path.write_bytes(b"".join(lines[: last + 1]))
    made = Client(lambda: ReplayEngine(path.open("rb") if piped else path), Settings())
    made.start()
    wait(made, lambda: made.complete)
    assert made.store.marks
    assert made.store.partial is None
    assert not made.store.generating
    failed = made.store.turns[0].failed
    assert failed is not None
    assert "recording ends" in failed.message
    made.close()


def test_the_configuration_is_made_once_for_all_frames() -> None:
    made = client()
    first = made.config
    assert made.config is first
    made.change(budget=7)
    assert made.config.tree.budget == 7
    assert made.config is made.config

from __future__ import annotations

import pytest

from dartree_core.events import PrefillDone, RunFailed, TurnFinished, TurnStarted
from dartree_core.pieces import TokenText
from dartree_tui.store import Store
from dartree_tui.unfinished import request_for, unfinished
from tests.tui.samples import make_round

PROMPT = (7, 8, 9)


def store(finished: str | None = None, failed: bool = False) -> Store:
    made = Store()
    made.feed(TurnStarted(0, "why", PROMPT, "chat", {"max_new_tokens": 20}))
    made.feed(PrefillDone(0, 3, 0, 0.1, 0.1, 50, "Well", (0, 4)))
    made.vocab.words[50] = TokenText("Well")
    done = make_round()
    for token in done.tokens:
        made.vocab.words[token] = TokenText(f" w{token}")
    made.feed(done)
    text = "Well" + done.text_delta
    if finished:
        made.feed(TurnFinished(0, finished, text, (50, *done.tokens)))  # type: ignore[arg-type]
    if failed:
        made.feed(RunFailed("gone"))
    made.turns[0]._parts[:] = ["Well" + "".join(f" w{t}" for t in done.tokens)]
    return made


@pytest.mark.parametrize("reason", ["length", "cancelled"])
def test_what_was_stopped_is_unfinished(reason: str) -> None:
    assert unfinished(store(reason)) is not None


def test_what_failed_is_unfinished_and_what_ended_or_runs_is_not() -> None:
    assert unfinished(store(failed=True)) is not None
    assert unfinished(store("eos")) is None
    assert unfinished(store("stop_string")) is None
    assert unfinished(store()) is None
    assert unfinished(Store()) is None


def test_it_goes_on_from_the_tokens_with_what_is_left_of_the_limit() -> None:
    made = store(failed=True)
    emitted = made.tokens_of(made.turns[0])
    request = request_for(made, made.turns[0], 20)
    assert request.prompt == [*PROMPT, *emitted]
    assert request.config is not None
    assert request.config["max_new_tokens"] == 20 - len(emitted)
    whole = request_for(made, made.turns[0], len(emitted))
    assert whole.config is not None
    assert whole.config["max_new_tokens"] == len(emitted)


@pytest.mark.parametrize("last", [TokenText("\ufffd", b"\xe2"), TokenText("<|im_end|>")])
def test_tokens_that_are_not_in_the_text_come_again(last: TokenText) -> None:
    made = store(failed=True)
    emitted = made.tokens_of(made.turns[0])
    made.vocab.words[emitted[-1]] = last
    made.turns[0]._parts[:] = ["Well" + "".join(f" w{t}" for t in emitted[1:-1])]
    assert request_for(made, made.turns[0], 20).prompt == [*PROMPT, *emitted[:-1]]


def test_only_the_newest_turn_keeps_its_input() -> None:
    made = store("length")
    made.going_on = made.turns[0]
    made.feed(TurnStarted(1, "", (1, 2), "ids", {}))
    assert [tuple(turn.prompt_ids) for turn in made.turns] == [(), (1, 2)]
    assert (made.turns[1].continues, made.turns[1].prompt) == (0, "why")
    assert made.going_on is None

"""A target that two processes hold together, driven as the terminal app drives it."""

from __future__ import annotations

from typing import Any

import pytest

from dartree_core.config import DecodeConfig
from tests.core import tiny
from tests.core.parallel.ranks import ranks

TARGET = tiny.CHECKPOINTS / "target_tied"
DRAFT = tiny.CHECKPOINTS / "draft_tied_p0_s0"
COUNT = 24

ASKED: dict[str, dict[str, Any]] = {
    "greedy": {"method": "dartree", "budget": 16},
    "auto": {"method": "dartree", "budget": "auto"},
    "sampled": {"method": "dartree", "budget": 16, "temperature": 0.9, "seed": 5},
    "plain": {"method": "ar"},
}


@pytest.fixture(scope="module")
def replies() -> dict[str, list[dict[str, Any]]]:
    """What two ranks said to each request: events, and the reply last."""
    found: dict[str, list[dict[str, Any]]] = {}
    with ranks("-m", "dartree_core", "worker") as both:
        models = {"target": str(TARGET), "draft": str(DRAFT), "dtype": "float32"}
        both.send({"op": "load", "id": "load", **models})
        found["load"] = both.until(id="load")
        for name in ASKED:
            config = settings_of(name).to_dict()
            request = {"op": "generate", "id": name, "prompt": tiny.PROMPT, "config": config}
            both.send(request | {"fresh": True})
            found[name] = both.until(id=name)
        prompt = list(tiny.PROMPT)
        for turn in ("first", "second"):
            config = settings_of("greedy").to_dict()
            both.send({"op": "generate", "id": turn, "prompt": prompt, "config": config})
            found[turn] = both.until(id=turn)
            prompt += [*answer(found[turn]), 7, 9]
        both.send({"op": "shutdown", "id": "end"})
        ends = both.finish()
    assert [code for code, _, _ in ends] == [0, 0], ends
    return found


def settings_of(name: str) -> DecodeConfig:
    return DecodeConfig().with_changes(max_new_tokens=COUNT, **ASKED[name])


def answer(lines: list[dict[str, Any]]) -> list[int]:
    ended = next(line for line in lines if line.get("kind") == "TurnFinished")
    ids: list[int] = ended["token_ids"]
    return ids


def test_the_target_is_split(replies: dict[str, list[dict[str, Any]]]) -> None:
    assert replies["load"][-1]["result"]["target"]["path"].endswith("tensor parallel over 2")


@pytest.mark.parametrize("name", ASKED)
def test_it_answers_as_one_process_does(
    name: str, replies: dict[str, list[dict[str, Any]]]
) -> None:
    alone = tiny.trained("tied")
    expected = alone.generate(tiny.PROMPT, settings_of(name))
    assert answer(replies[name]) == list(expected.token_ids)


def test_trees_of_several_nodes_were_accepted(replies: dict[str, list[dict[str, Any]]]) -> None:
    rounds = [line for line in replies["greedy"] if line.get("kind") == "RoundDone"]
    assert max(len(line["accepted"]) for line in rounds) > 2
    assert len(rounds) < COUNT


def test_a_second_turn_reuses_the_first(replies: dict[str, list[dict[str, Any]]]) -> None:
    alone = tiny.trained("tied")
    session = alone.session()
    prompt = list(tiny.PROMPT)
    for turn in ("first", "second"):
        expected = alone.generate(prompt, settings_of("greedy"), session=session)
        assert answer(replies[turn]) == list(expected.token_ids)
        prompt += [*expected.token_ids, 7, 9]
    prefill = next(line for line in replies["second"] if line.get("kind") == "PrefillDone")
    assert prefill["reused_tokens"] > len(tiny.PROMPT)

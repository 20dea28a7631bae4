"""What is streamed: whole characters, every accepted token, real tokens that look like the mask."""

from __future__ import annotations

from typing import Any

import pytest

from dartree_core.config import METHODS, DecodeConfig, TreeConfig
from dartree_core.engine import Decoder
from dartree_core.events import Event, PrefillDone, TurnFinished
from tests.core import tiny

TEXTS = {
    "emoji": "ok 🙂🚀👩‍👩‍👧‍👦 the end",
    "cjk": "你好,世界。日本語のテキスト",
    "mixed": "naïve 🙂 cat 你 — “the” ½",
    "blanks": "  the  cat\n\n\tsat ",
}


def deltas(found: list[Event]) -> list[tuple[str, tuple[int, int]]]:
    return [
        (e.text_delta, e.span) for e in found if hasattr(e, "text_delta") and hasattr(e, "span")
    ]


@pytest.mark.parametrize("block", [2, 3, 6])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_characters_split_over_tokens_and_rounds_stay_whole(text: str, block: int) -> None:
    decoder = tiny.saying(text)
    found = tiny.events(decoder, tiny.PROMPT, DecodeConfig(tree=TreeConfig(block_size=block)))
    assert tiny.finish(found).text == text
    at = 0
    for delta, span in deltas(found):
        assert "\ufffd" not in delta
        assert span == (at, at + len(delta))
        at = span[1]
    assert "".join(delta for delta, _ in deltas(found)) == text
    ids = tiny.finish(found).token_ids
    assert text == decoder.tokenizer.decode(ids, skip_special_tokens=True)
    if text != TEXTS["blanks"]:
        assert len(ids) > len(text), "no character took several tokens"


@pytest.mark.parametrize("method", METHODS)
def test_cancelled_text_is_what_the_deltas_said(method: Any) -> None:
    text = TEXTS["cjk"]
    for events_seen in range(2, 9):
        decoder = tiny.saying(text)
        session = decoder.session()
        found: list[Event] = []
        for event in decoder.stream(tiny.PROMPT, DecodeConfig(method=method), session=session):
            found.append(event)
            if len(found) == events_seen:
                session.cancel()
        result = tiny.finish(found)
        assert result.reason == "cancelled"
        assert "".join(delta for delta, _ in deltas(found)) == result.text
        assert text.startswith(result.text.rstrip("\ufffd"))


def test_every_token_of_an_accepted_group_is_streamed() -> None:
    text = "the cat sat on the mat"
    decoder = tiny.saying(text)
    ids = [*decoder.tokenizer(text).input_ids, decoder.tokenizer.eos_token_id]
    draft = decoder.drafter
    assert isinstance(draft, tiny.KnowingDrafter)
    draft.opinion = tiny.always_right([*tiny.PROMPT, *ids])
    found = tiny.events(decoder, tiny.PROMPT, DecodeConfig())
    groups = [e for e in tiny.rounds(found) if len(e.tokens) > 1]
    assert groups, "nothing was accepted in groups"
    at = 1
    for e in tiny.rounds(found):
        assert list(e.tokens) == ids[at : at + len(e.tokens)]
        said = decoder.tokenizer.decode(ids[: at + len(e.tokens)], skip_special_tokens=True)
        assert said == text[: e.span[1]]
        at += len(e.tokens)
    assert at == len(ids)


@pytest.mark.parametrize("method", METHODS)
def test_special_tokens_inside_the_answer_are_ids_but_no_text(method: Any) -> None:
    decoder = tiny.saying("the cat")
    target = decoder.target
    assert isinstance(target, tiny.ScriptedTarget)
    user = decoder.tokenizer.convert_tokens_to_ids(tiny.SPECIAL[1])
    script = list(target.script)
    script.insert(len(tiny.PROMPT) + 1, user)
    target.script = script
    result = decoder.generate(tiny.PROMPT, DecodeConfig(method=method))
    assert list(result.token_ids) == script[len(tiny.PROMPT) :]
    assert result.text == "the cat"


# The mask token is a token


@pytest.mark.parametrize("method", tiny.DRAFTING)
def test_a_token_equal_to_the_mask_is_emitted_like_any_other(method: Any) -> None:
    config = DecodeConfig(method=method, max_new_tokens=24)
    target = tiny.target("llama")
    answer = list(tiny.plain(tiny.family("llama"), tiny.PROMPT, config).token_ids)
    for mask in (answer[2], answer[7], tiny.PROMPT[3]):
        draft = tiny.headless(target, mask_token_id=mask)
        draft.opinion = tiny.always_right([*tiny.PROMPT, *answer])
        found = tiny.events(Decoder(target, draft), tiny.PROMPT, config)
        assert tiny.finish(found).token_ids == answer
        drafted = {t for e in tiny.rounds(found) for t in e.tree.token[1:]}
        assert mask in drafted or mask not in answer


@pytest.mark.parametrize("method", tiny.DRAFTING)
def test_the_mask_in_the_prompt_stays_there(method: Any) -> None:
    decoder = tiny.trained("tied")
    assert decoder.drafter is not None
    mask = decoder.drafter.spec.mask_token_id
    prompt = [mask, 5, 17, mask, 29, mask]
    config = DecodeConfig(method=method, max_new_tokens=16)
    session = decoder.session()
    found = tiny.events(decoder, prompt, config, session=session)
    assert session.ids[: len(prompt)] == prompt
    assert next(e for e in found if isinstance(e, PrefillDone)).prompt_tokens == len(prompt)
    assert tiny.finish(found).token_ids == tiny.plain(decoder, prompt, config).token_ids
    theirs = tiny.greedy_transformers(decoder.target, prompt, 16)
    assert tiny.finish(found).token_ids == theirs


def test_metrics_count_what_was_emitted() -> None:
    decoder = tiny.saying(TEXTS["mixed"])
    found = tiny.events(decoder, tiny.PROMPT, DecodeConfig())
    end = tiny.finish(found)
    assert isinstance(end, TurnFinished)
    assert end.metrics["num_emitted_tokens"] == len(end.token_ids)
    drafted = sum(p == "draft" for e in tiny.rounds(found) for p in e.provenance)
    assert end.metrics["num_accepted_draft_tokens"] == drafted > 0

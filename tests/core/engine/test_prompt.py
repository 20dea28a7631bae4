"""From what the user typed to token ids."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from dartree_core.config import DecodeConfig
from dartree_core.engine import Decoder
from dartree_core.engine.prompt import Prompt, can_think, encode_prompt, thinking_notes
from dartree_core.errors import ConfigError
from dartree_core.events import RunStarted
from tests.core import tiny

MESSAGES = [
    {"role": "user", "content": "the cat"},
    {"role": "assistant", "content": "sat"},
    {"role": "user", "content": "and the dog?"},
]


def speller(**options: Any) -> Any:
    return tiny.tokenizer(**options)


def decoded(ids: list[int]) -> str:
    text: str = speller().decode(ids)
    return text


def test_ids_are_taken_as_they_are() -> None:
    for tokenizer in (None, speller()):
        prompt = encode_prompt([5, 0, 7], tokenizer)
        assert (prompt.ids, prompt.text, prompt.template) == ([5, 0, 7], "", "ids")


def test_text_is_one_user_turn_of_the_chat_template() -> None:
    prompt = encode_prompt("the cat", speller())
    assert decoded(prompt.ids) == "<|user|>the cat<|end|><|assistant|>"
    assert (prompt.text, prompt.template) == ("the cat", "chat")
    special = speller().convert_tokens_to_ids(tiny.SPECIAL)
    assert [i for i in prompt.ids if i in special] == [special[1], special[0], special[2]]


def test_messages_keep_their_order_and_the_last_is_shown() -> None:
    prompt = encode_prompt(MESSAGES, speller())
    assert decoded(prompt.ids) == (
        "<|user|>the cat<|end|><|assistant|>sat<|end|><|user|>and the dog?<|end|><|assistant|>"
    )
    assert prompt.text == "and the dog?"


def test_a_conversation_extends_its_own_prefix() -> None:
    """What was answered may be read back without losing the cache."""
    first = encode_prompt(MESSAGES[:1], speller()).ids
    assert encode_prompt(MESSAGES, speller()).ids[: len(first)] == first


def test_raw_text_skips_the_template() -> None:
    prompt = encode_prompt("the cat", speller(), raw=True)
    assert decoded(prompt.ids) == "the cat"
    assert (prompt.text, prompt.template) == ("the cat", "raw")


@pytest.mark.parametrize(
    ("thinking", "template", "hint"),
    [
        (None, "chat:thinking", False),
        (True, "chat:thinking", False),
        (False, "chat:no-thinking", True),
    ],
)
def test_thinking_switch(thinking: bool | None, template: str, hint: bool) -> None:
    tokenizer = speller(thinks=True)
    prompt = encode_prompt("the cat", tokenizer, thinking=thinking)
    assert prompt.template == template
    assert ("no thoughts" in decoded(prompt.ids)) == hint
    assert can_think(tokenizer)
    assert not can_think(speller())
    assert not can_think(None)


@pytest.mark.parametrize(
    ("template", "by_default"),
    [
        # Qwen3 thinks unless told not to; Granite and DeepSeek think only when told to.
        ("{% if enable_thinking is defined and enable_thinking is false %}off{% endif %}", True),
        ("{% if enable_thinking is defined and enable_thinking is true %}on{% endif %}", False),
        ("{% if not thinking %}off{% endif %}", False),
        ("{% set thinking = thinking | default(true) %}{% if thinking %}on{% endif %}", True),
    ],
)
def test_the_mode_is_what_the_template_renders(template: str, by_default: bool) -> None:
    tokenizer = speller()
    tokenizer.chat_template = "{{ messages[0].content }}" + template
    words = {True: "chat:thinking", False: "chat:no-thinking"}
    assert can_think(tokenizer)
    assert encode_prompt("the cat", tokenizer).template == words[by_default]
    for asked in (True, False):
        assert encode_prompt("the cat", tokenizer, thinking=asked).template == words[asked]


def test_a_word_that_merely_contains_the_switch_is_none() -> None:
    tokenizer = speller()
    tokenizer.chat_template = "{{ messages[0].content }}{# rethinking_needed #}"
    assert not can_think(tokenizer)
    assert encode_prompt("the cat", tokenizer).template == "chat"


def test_thinking_is_a_note_while_drafting() -> None:
    assert thinking_notes("chat:thinking", DecodeConfig(method="ar")) == ()
    assert thinking_notes("chat:no-thinking", DecodeConfig()) == ()
    (note,) = thinking_notes("chat:thinking", DecodeConfig())
    assert "--no-thinking" in note


def test_a_thinking_turn_says_so_in_its_header_and_once_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    decoder = tiny.trained("tied")
    thinker = Decoder(
        decoder.target, decoder.drafter, speller(thinks=True), notes=("Something else.",)
    )
    prompt = Prompt("", tiny.PROMPT, "chat:thinking")
    config = DecodeConfig(max_new_tokens=2)
    with caplog.at_level(logging.INFO):
        headers = [tiny.events(thinker, prompt, config)[0] for _ in range(2)]
    for header in headers:
        assert isinstance(header, RunStarted)
        assert header.notes == ["Something else.", *thinking_notes("chat:thinking", config)]
    assert caplog.text.count("The chat template thinks") == 1


def test_template_without_a_thinking_switch_says_plain_chat() -> None:
    assert encode_prompt("the cat", speller(), thinking=False).template == "chat"


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ("", {}, "prompt is empty"),
        ("  \n", {}, "prompt is empty"),
        ([], {}, "prompt is empty"),
        ("", {"raw": True}, "prompt is empty"),
        (MESSAGES, {"raw": True}, "Raw mode feeds plain text"),
        ([{"role": "user"}], {}, "needs a role and content"),
        (["the cat"], {}, "needs a role and content"),
    ],
    ids=["empty", "blank", "no-messages", "raw-empty", "raw-messages", "no-content", "no-mapping"],
)
def test_unusable_prompts_say_why(prompt: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        encode_prompt(prompt, speller(), **options)
    assert error.value.remedy
    assert error.value.exit_code == 2


def test_a_template_that_refuses_the_messages_is_quoted() -> None:
    tokenizer = speller()
    tokenizer.chat_template = (
        "{% if messages[0]['role'] == 'system' %}"
        "{{ raise_exception('System role not supported') }}{% endif %}x"
    )
    system = [{"role": "system", "content": "be brief"}, *MESSAGES]
    with pytest.raises(ConfigError, match="refuses these messages: System role not") as error:
        encode_prompt(system, tokenizer)
    assert "system prompt" in error.value.remedy
    assert encode_prompt(MESSAGES, tokenizer).template == "chat"


def test_text_needs_a_tokenizer_and_chat_a_template() -> None:
    with pytest.raises(ConfigError, match="no tokenizer"):
        encode_prompt("the cat", None)
    with pytest.raises(ConfigError, match="no chat template") as error:
        encode_prompt("the cat", speller(template=False))
    assert "--raw" in error.value.remedy
    assert encode_prompt("the cat", speller(template=False), raw=True).ids

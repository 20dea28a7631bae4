"""From what the user typed to token ids: chat template, thinking mode, raw text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from dartree_core.config import DecodeConfig
from dartree_core.errors import ConfigError

_SWITCHES = ("enable_thinking", "thinking")
"""Variables by which chat templates let a caller choose: Qwen3's name, and DeepSeek's."""

Message: TypeAlias = Mapping[str, str]
PromptLike: TypeAlias = "str | Sequence[Message] | Sequence[int]"
"""One user turn, a conversation of `{"role", "content"}` messages, or token ids."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """An encoded prompt.

    Attributes:
        text: What the user asked, for display.
        ids: The model's input.
        template: `ids`, `raw`, `chat`, `chat:thinking` or `chat:no-thinking`.
    """

    text: str
    ids: list[int]
    template: str


def encode_prompt(
    prompt: PromptLike, tokenizer: Any | None, *, raw: bool = False, thinking: bool | None = None
) -> Prompt:
    """Encode a prompt.

    Args:
        prompt: Text, messages, or ids (which are taken as they are).
        tokenizer: A transformers tokenizer; None accepts ids only.
        raw: Feed text without the chat template.
        thinking: For templates that can think: ask for it, forbid it, or None for the
            template's own default.

    Raises:
        ConfigError: The prompt is empty, the model has no tokenizer or template, or messages are
            malformed.
    """
    if not isinstance(prompt, str) and prompt and isinstance(prompt[0], int):
        return Prompt("", [int(i) for i in prompt], "ids")  # type: ignore[arg-type]
    if not isinstance(prompt, str) and not prompt:
        raise ConfigError("The prompt is empty.", "Give at least one message or token.")
    if tokenizer is None:
        raise ConfigError(
            "This model has no tokenizer, so it cannot read text.",
            "Give token ids, or a model directory with tokenizer files.",
        )
    if raw:
        return _raw(prompt, tokenizer)
    messages = _messages(prompt)
    if not tokenizer.chat_template:
        raise ConfigError(
            "This model has no chat template.",
            "Pass --raw to feed the prompt as plain text, or use an instruction-tuned model.",
        )

    from jinja2.exceptions import TemplateError  # torch brings jinja2

    def render(switch: bool | None) -> str:
        chosen = {} if switch is None else dict.fromkeys(_SWITCHES, switch)
        try:
            text: str = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **chosen
            )
        except TemplateError as error:
            raise ConfigError(
                f"The model's chat template refuses these messages: {error}.",
                "Leave the system prompt out, or pass --raw to do without the template.",
            ) from error
        return text

    text, mode = render(thinking), "chat"
    if can_think(tokenizer):
        # Left alone, some templates think and others do not: what they render tells.
        mode = "chat:no-thinking" if text == render(False) else "chat:thinking"
    ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
    return Prompt(messages[-1]["content"], ids, mode)


def can_think(tokenizer: Any | None) -> bool:
    """True when the chat template has a thinking switch."""
    if tokenizer is None:
        return False
    words = re.findall(r"\w+", str(tokenizer.chat_template or ""))
    return any(switch in words for switch in _SWITCHES)


def thinking_notes(template: str, config: DecodeConfig) -> tuple[str, ...]:
    """What to say when a prompt thinks and its drafter, as published ones are, was trained
    without: one sentence, or nothing."""
    if template != "chat:thinking" or config.method == "ar":
        return ()
    return (
        "The chat template thinks; drafters trained without thinking accept far less. "
        "Compare with --no-thinking.",
    )


def _raw(prompt: PromptLike, tokenizer: Any) -> Prompt:
    if not isinstance(prompt, str):
        raise ConfigError(
            "Raw mode feeds plain text, but got chat messages.", "Give a string, or drop --raw."
        )
    ids: list[int] = tokenizer(prompt).input_ids
    if not ids:
        raise ConfigError("The prompt is empty.", "Type something for the model to go on from.")
    return Prompt(prompt, ids, "raw")


def _messages(prompt: PromptLike) -> list[dict[str, str]]:
    if isinstance(prompt, str):
        if not prompt.strip():
            raise ConfigError("The prompt is empty.", "Type a question or an instruction.")
        return [{"role": "user", "content": prompt}]
    messages = []
    for message in prompt:
        if not isinstance(message, Mapping) or not {"role", "content"} <= set(message):
            raise ConfigError(
                f"A chat message is {message!r}, but needs a role and content.",
                'For example {"role": "user", "content": "Hello"}.',
            )
        messages.append({"role": str(message["role"]), "content": str(message["content"])})
    return messages

"""Who answers: a decoder with one method, or another engine; and how a conversation goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from dartree_core.bench.records import Row, TurnRecord
from dartree_core.bench.stop import Stop
from dartree_core.config import DecodeConfig
from dartree_core.errors import ConfigError
from dartree_core.events import PrefillDone, RoundDone, TurnFinished
from dartree_core.metrics import RunningMetrics

if TYPE_CHECKING:
    from dartree_core.engine import Decoder, Session
    from dartree_core.engine.prompt import Prompt

CONTEXT_EDGES = (0, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
"""Lower bounds of the context lengths that acceptance is reported by."""


class Speaker(Protocol):
    """Answers turn after turn of one conversation at a time."""

    def begin(self) -> None:
        """Forget the last conversation."""
        ...

    def answer(self, prompt: Prompt, config: DecodeConfig) -> TurnRecord:
        """Decode one turn of the conversation."""
        ...


class DecoderSpeaker:
    """One of our own methods, on its own view of the models.

    Every variant gets one, so that what budget `auto` learns from one method's rounds does not
    decide another's.

    Args:
        decoder: Whose models are used.
        stop: The user's wish to stop.
    """

    def __init__(self, decoder: Decoder, stop: Stop) -> None:
        self._decoder = type(decoder)(
            decoder.target,
            decoder.drafter,
            decoder.tokenizer,
            bundle=decoder.bundle,
            memory=decoder.memory,
        )
        self._stop = stop
        self._session: Session | None = None

    def begin(self) -> None:
        """Start with empty caches."""
        self._session = None

    def answer(self, prompt: Prompt, config: DecodeConfig) -> TurnRecord:
        """Decode one turn, reusing what the caches share with the prompt."""
        session = self._session = self._session or self._decoder.session()
        metrics = RunningMetrics()
        context: dict[str, list[int]] = {}
        prefill: PrefillDone | None = None
        finished: TurnFinished | None = None
        with self._stop.cancels(session.cancel):
            for event in self._decoder.stream(prompt, config, session=session):
                metrics.update(event)
                match event:
                    case PrefillDone():
                        prefill = event
                    case RoundDone():
                        _count(context, event)
                    case TurnFinished():
                        finished = event
        assert prefill is not None
        assert finished is not None
        summary = metrics.summary()
        return TurnRecord(
            prompt_tokens=prefill.prompt_tokens,
            reused_tokens=prefill.reused_tokens,
            token_ids=list(finished.token_ids),
            text=finished.text,
            reason=finished.reason,
            decode_tokens=len(finished.token_ids) - 1,
            decode_s=summary["decode_s"],
            prefill_s=summary["prefill_s"],
            metrics=summary,
            context=context,
        )


def _count(context: dict[str, list[int]], done: RoundDone) -> None:
    if not done.tree.num_verified:
        return
    edge = max(e for e in CONTEXT_EDGES if e <= done.position)
    cell = context.setdefault(str(edge), [0, 0])
    cell[0] += 1
    cell[1] += sum(source == "draft" for source in done.provenance)


class Asker:
    """Turns rows into prompts for a decoder's target.

    Args:
        decoder: Whose tokenizer and template are used.
        raw, thinking: See `encode_prompt`.
        system: System prompt, or None.
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        raw: bool = False,
        thinking: bool | None = False,
        system: str | None = None,
    ) -> None:
        self._decoder = decoder
        self._raw = raw
        self._thinking = thinking
        self._system = [] if system is None else [{"role": "system", "content": system}]

    def prompt(self, row: Row, replies: Sequence[str] = ()) -> Prompt:
        """The prompt of the turn after `replies`.

        Raises:
            ConfigError: The prompt is unusable for this target.
        """
        if row.prompt_ids:
            return self._decoder.encode(list(row.prompt_ids))
        if self._raw:
            if len(row.turns) > 1:
                raise ConfigError(
                    f"Prompt {row.id} has {len(row.turns)} turns, but raw text has only one.",
                    "Leave --raw out.",
                )
            return self._decoder.encode(row.turns[0], raw=True)
        messages: list[Any] = list(self._system)
        for turn, reply in zip(row.turns, replies, strict=False):
            messages += [
                {"role": "user", "content": turn},
                {"role": "assistant", "content": reply},
            ]
        messages.append({"role": "user", "content": row.turns[len(replies)]})
        return self._decoder.encode(messages, thinking=self._thinking)


def converse(
    asker: Asker, speaker: Speaker, row: Row, config: DecodeConfig
) -> tuple[list[Prompt], list[TurnRecord]]:
    """A whole conversation with the speaker's own answers in between.

    Returns:
        The prompts, and one record per turn.
    """
    speaker.begin()
    prompts: list[Prompt] = []
    turns: list[TurnRecord] = []
    for _ in range(max(1, len(row.turns))):
        prompts.append(asker.prompt(row, [turn.text for turn in turns]))
        turns.append(speaker.answer(prompts[-1], config))
    speaker.begin()
    return prompts, turns

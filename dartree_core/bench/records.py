"""What a benchmark keeps of every answer: plain data that survives a trip through JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """One conversation to decode.

    Attributes:
        id: Unique in its dataset.
        turns: What the user says, ready to send; the decoder's own replies go between.
        prompt_ids: Token ids instead, for models without a tokenizer.
        data: Everything else the row said (reference, tests, category).
    """

    id: str
    turns: tuple[str, ...] = ()
    prompt_ids: tuple[int, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One answer.

    Attributes:
        prompt_tokens, reused_tokens: Length of the input; how much of it was still in the cache.
        token_ids, text, reason: The answer and why it ended.
        decode_tokens: Tokens whose time is in `decode_s`: all after the first.
        decode_s: Seconds of the rounds; for a peer from its first tokens to its last.
        prefill_s: Seconds before them.
        metrics: `RunningMetrics.summary()`, or what a peer shows of it.
        context: Rounds that speculated, by length of the context: the lower bound (as text) to
            `[rounds, accepted tokens]`.
    """

    prompt_tokens: int
    reused_tokens: int
    token_ids: list[int]
    text: str
    reason: str
    decode_tokens: int
    decode_s: float
    prefill_s: float
    metrics: Mapping[str, Any]
    context: Mapping[str, list[int]] = field(default_factory=dict)


@dataclass(slots=True)
class Sample:
    """What one variant did with one conversation.

    Attributes:
        variant: Key of the variant.
        turns: One record per user turn; empty after an error.
        error: Why there are none, or "".
        identical: Whether every turn has plain decoding's ids; None where that was not compared.
        divergence: Where the first difference is and how close the choice was, see
            `bench.check`; None without one.
        quality: Score against the row's reference, or None where it has none.
    """

    variant: str
    turns: list[TurnRecord] = field(default_factory=list)
    error: str = ""
    identical: bool | None = None
    divergence: dict[str, Any] | None = None
    quality: float | None = None

    @property
    def decode_tokens(self) -> int:
        """Tokens after the first, over all turns."""
        return sum(turn.decode_tokens for turn in self.turns)

    @property
    def decode_s(self) -> float:
        """Seconds of decoding, over all turns."""
        return sum(turn.decode_s for turn in self.turns)

    @property
    def prefill_s(self) -> float:
        """Seconds of prefill, over all turns."""
        return sum(turn.prefill_s for turn in self.turns)

    @property
    def tokens(self) -> int:
        """All emitted tokens."""
        return sum(len(turn.token_ids) for turn in self.turns)

    @property
    def seconds_per_token(self) -> float | None:
        """Decoding time of one token; None when nothing was decoded."""
        return self.decode_s / self.decode_tokens if self.decode_tokens else None

    @property
    def seconds_per_token_with_prefill(self) -> float | None:
        """Time of one token with its share of the prefill; None without tokens."""
        return (self.prefill_s + self.decode_s) / self.tokens if self.tokens else None


@dataclass(slots=True)
class Case:
    """One conversation at one temperature, decoded by every variant, one after the other.

    Attributes:
        dataset, row: What was asked.
        temperature: Of the target.
        samples: One per variant.
    """

    dataset: str
    row: str
    temperature: float
    samples: list[Sample] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, str, float]:
        """What makes it one case and not another."""
        return self.dataset, self.row, self.temperature

    def sample(self, variant: str) -> Sample | None:
        """The sample of a variant, or None."""
        return next((s for s in self.samples if s.variant == variant), None)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Case:
        """Inverse of `to_dict`.

        Raises:
            KeyError, TypeError: The record is incomplete.
        """
        samples = [
            Sample(**{**sample, "turns": [TurnRecord(**turn) for turn in sample["turns"]]})
            for sample in data["samples"]
        ]
        return cls(data["dataset"], data["row"], data["temperature"], samples)

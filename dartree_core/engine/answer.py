"""What a turn has emitted, and whether it is over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

from dartree_core.events import FinishReason
from dartree_core.text import AnswerText


class Answer:
    """Emits tokens one at a time, so that nothing follows an end, whoever drafted it.

    Args:
        decode: Token ids to text.
        stop: Stop strings.
        eos: Ids that end the turn; the id itself is emitted.
        limit: Most tokens to emit.
    """

    def __init__(
        self,
        decode: Callable[[list[int]], str],
        stop: Sequence[str],
        eos: AbstractSet[int],
        limit: int,
    ) -> None:
        self.text = AnswerText(decode, stop)
        self.eos = eos
        self.limit = limit
        self.reason: FinishReason | None = None

    @property
    def token_ids(self) -> list[int]:
        """Everything emitted."""
        return self.text.token_ids

    @property
    def room(self) -> int:
        """Tokens that may still be emitted."""
        return self.limit - len(self.token_ids)

    def emit(self, tokens: Sequence[int]) -> list[int]:
        """Emit tokens up to the one that ends the turn; returns those emitted.

        An end-of-sequence token outranks a stop string, which outranks the limit: the reason
        says what a longer limit would not have changed.
        """
        out = []
        for token in tokens:
            if self.reason is not None:
                break
            out.append(token)
            stopped = self.text.push(token)
            if token in self.eos:
                self.reason = "eos"
            elif stopped:
                self.reason = "stop_string"
            elif self.room == 0:
                self.reason = "length"
        if self.reason is not None:
            self._close()
        return out

    def cancel(self) -> None:
        """End the turn because the user said so."""
        self.reason = "cancelled"
        self._close()

    def _close(self) -> None:
        self.text.flush()
        if self.reason == "length" and self.text.matched is not None:
            self.reason = "stop_string"  # held-back text completed one

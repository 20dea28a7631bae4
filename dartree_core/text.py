"""From token ids to text while they arrive: detokenisation and stop strings.

Text is given out once and never taken back, so both classes hold back what later tokens could
still change: the bytes of an unfinished character, and the beginning of a stop string.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from dartree_core.pieces import TokenText, TokenTextFn, TokenTexts

__all__ = [
    "AnswerText",
    "Decode",
    "IncrementalDetokenizer",
    "StopMatcher",
    "TokenText",
    "TokenTextFn",
    "TokenTexts",
]

Decode: TypeAlias = Callable[[list[int]], str]
"""Token ids to text, as a tokenizer's `decode` does, special tokens skipped or not as wanted."""

_UNFINISHED = "\ufffd"
_LONGEST_CHARACTER = 4
_MOST_PENDING = 32


class IncrementalDetokenizer:
    """Text of a growing token sequence, in time linear in its length.

    Decoding tokens one by one loses blanks (a decoder may strip the first token's) and tears
    characters apart; decoding everything each time is quadratic. So a short window is decoded
    instead: the tokens that ended the text given out so far, for context, and those after them.
    What the window says beyond the context's own text is new. (The idea of TGI and vLLM; here
    the window has a hard limit, and whole characters before an unfinished one are not held.)

    Joined results equal `decode` of all ids. The one exception are decoders that revoke: with
    SentencePiece's byte fallback an invalid byte turns the valid ones before it into U+FFFD
    too, and those have been given out by then.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._context: list[int] = []
        self._pending: list[int] = []
        self._given = ""  # of the window's text; starts as the context's
        self._single: dict[int, str] = {}
        self._silent: dict[int, bool] = {}

    def push(self, token: int) -> str:
        """Add a token; return the text that became final, never half a character."""
        self._pending.append(token)
        text = self._decode(self._context + self._pending)
        final = text.rstrip(_UNFINISHED)
        if final == text != self._given:
            new = self._beyond_given(text)
            self._move_context(self._pending)
            return new
        if self._is_silent(token):
            self._pending.pop()  # skipped tokens may come in any number
            return ""
        new = ""
        if final.startswith(self._given) and final != self._given:
            new = final[len(self._given) :]
            self._given = final
        if len(self._pending) > _MOST_PENDING:
            new += self._give_up_on_run()
        return new

    def flush(self) -> str:
        """The rest, unfinished characters as U+FFFD. More tokens may follow."""
        new = self._beyond_given(self._decode(self._context + self._pending))
        self._move_context(self._pending)
        return new

    def _is_silent(self, token: int) -> bool:
        """True for tokens that no text comes of. A lone blank may look like one at the start of
        a text, where decoders strip it; the second of two does not."""
        if token not in self._silent:
            self._silent[token] = not self._decode([token, token])
        return self._silent[token]

    def _beyond_given(self, text: str) -> str:
        if text.startswith(self._given):
            return text[len(self._given) :]
        return self._decode(self._pending)  # the decoder revoked the context's text

    def _give_up_on_run(self) -> str:
        """Cut a long run in which no token ended in a finished character; return what is new.

        Of the tokens that an unfinished character at the end may have, the most are kept
        pending. A cut is sound where both sides decode to what they do together.
        """
        run = self._pending
        text = self._decode(run)
        cut = len(run)
        for held in range(_LONGEST_CHARACTER - 1, 0, -1):
            if self._decode(run[:-held]) + self._decode(run[-held:]) == text:
                cut = len(run) - held
                break
        context_length = len(self._decode(self._context + run)) - len(text)
        given = max(0, len(self._given) - context_length)
        self._context, self._pending = run[:cut], run[cut:]
        end = max(given, len(self._decode(self._context)))
        self._given = text[:end]
        return text[given:end]

    def _move_context(self, tokens: list[int]) -> None:
        if not tokens:
            return
        self._context = tokens
        self._pending = []
        if len(tokens) > 1:
            self._given = self._decode(tokens)
            return
        text = self._single.get(tokens[0])
        if text is None:
            text = self._single[tokens[0]] = self._decode(tokens)
        self._given = text


class StopMatcher:
    """Finds the first stop string in text that arrives in pieces.

    The match that is complete first wins, whatever the order of the list and however the text
    is cut into pieces; of several that end at the same character, the longest. (An Aho-Corasick
    automaton: its depth is the length of the text that may still become a stop string.)
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self.matched: str | None = None
        self._held = ""
        self._state = 0
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._match = [""]
        for string in stop:
            self._add(string)
        self._fail = [0] * len(self._next)
        self._link()

    def _add(self, string: str) -> None:
        if not string:
            raise ValueError("a stop string must not be empty")
        node = 0
        for char in string:
            if char not in self._next[node]:
                self._next[node][char] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[node] + 1)
                self._match.append("")
            node = self._next[node][char]
        self._match[node] = string

    def _link(self) -> None:
        queue = deque(self._next[0].values())
        while queue:
            node = queue.popleft()
            self._match[node] = self._match[node] or self._match[self._fail[node]]
            for char, child in self._next[node].items():
                self._fail[child] = self._step(self._fail[node], char)
                queue.append(child)

    def _step(self, node: int, char: str) -> int:
        while node and char not in self._next[node]:
            node = self._fail[node]
        return self._next[node].get(char, 0)

    def push(self, text: str) -> str:
        """Add text; return what no stop string can begin in any more.

        After a match `matched` is the stop string, and nothing from its start on comes out.
        """
        if self.matched is not None:
            return ""
        if not self._next[0]:
            return text
        held = self._held + text
        for i, char in enumerate(text, start=len(self._held) + 1):
            self._state = self._step(self._state, char)
            if self._match[self._state]:
                self.matched = self._match[self._state]
                self._held = ""
                return held[: i - len(self.matched)]
        safe = len(held) - self._depth[self._state]
        self._held = held[safe:]
        return held[:safe]

    def flush(self) -> str:
        """What was held back, since no more text will come."""
        held, self._held, self._state = self._held, "", 0
        return held


class AnswerText:
    """The text of one answer: fed tokens one at a time, read as deltas.

    Joined deltas equal `text` at every moment. A stop string is not part of the text; the
    tokens that completed it stay in `token_ids`.

    Args:
        decode: Token ids to text; whether special tokens show is its business.
        stop: Stop strings, none empty.
    """

    def __init__(self, decode: Decode, stop: Sequence[str] = ()) -> None:
        self.token_ids: list[int] = []
        self._detokenizer = IncrementalDetokenizer(decode)
        self._stop = StopMatcher(stop)
        self._parts: list[str] = []
        self._told_parts = 0
        self._told = 0

    @property
    def text(self) -> str:
        """All text that is final."""
        return "".join(self._parts)

    @property
    def matched(self) -> str | None:
        """The stop string that ended the answer, if one did."""
        return self._stop.matched

    def push(self, token: int) -> bool:
        """Add a token; True when it completed a stop string, after which none may follow.

        Raises:
            ValueError: the answer has ended at a stop string already.
        """
        if self.matched is not None:
            raise ValueError(f"the answer ended at the stop string {self.matched!r}")
        self.token_ids.append(token)
        self._give(self._stop.push(self._detokenizer.push(token)))
        return self.matched is not None

    def flush(self) -> None:
        """End the answer: the next `delta` includes what was held back until now.

        After a stop string there is nothing to add. Call it once, when no token will follow.
        """
        self._give(self._stop.push(self._detokenizer.flush()))
        self._give(self._stop.flush())

    def delta(self) -> tuple[str, tuple[int, int]]:
        """Text that became final since the last call, and its character offsets (start, end)."""
        new = "".join(self._parts[self._told_parts :])
        start, self._told = self._told, self._told + len(new)
        self._told_parts = len(self._parts)
        return new, (start, self._told)

    def _give(self, text: str) -> None:
        if text:
            self._parts.append(text)

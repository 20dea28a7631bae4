"""Events as JSON records, each token's text told before its first use."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import orjson

from dartree_core.events import (
    BlockDrafted,
    DepthExpanded,
    Event,
    PrefillDone,
    RoundDone,
    RunStarted,
    TreeVerified,
    TurnFinished,
    TurnStarted,
    encode,
)
from dartree_core.pieces import TokenText, TokenTextFn

VOCAB = "Vocab"
"""The `kind` of a record of token texts."""


def encode_vocab(tokens: Mapping[int, TokenText]) -> dict[str, Any]:
    """A `Vocab` record: text as a string, torn bytes as `{"hex": ...}`."""
    shown = {str(i): t.text if t.raw is None else {"hex": t.raw.hex()} for i, t in tokens.items()}
    return {"kind": VOCAB, "tokens": shown}


def vocab_line(tokens: Mapping[int, TokenText]) -> bytes:
    """A `Vocab` record as a line of a trace."""
    return _line(encode_vocab(tokens))


def decode_vocab(record: Mapping[str, Any]) -> dict[int, TokenText]:
    """Inverse of `encode_vocab`.

    Raises:
        ValueError: the record has no tokens, or one of them is neither text nor bytes.
    """
    tokens = record.get("tokens")
    if not isinstance(tokens, Mapping):
        raise ValueError("a Vocab record has no tokens")
    out: dict[int, TokenText] = {}
    for key, value in tokens.items():
        if isinstance(value, str):
            out[int(key)] = TokenText(value)
        elif isinstance(value, Mapping) and isinstance(value.get("hex"), str):
            out[int(key)] = TokenText.of_bytes(bytes.fromhex(value["hex"]))
        else:
            raise ValueError(f"token {key} of a Vocab record is neither text nor bytes")
    return out


def token_ids(event: Event) -> Iterable[int]:
    """Every token id the event mentions, with repeats."""
    match event:
        case RunStarted() | TurnStarted():
            return event.prompt_ids
        case PrefillDone():
            return (event.first_token,)
        case BlockDrafted():
            return chain.from_iterable(event.token)
        case DepthExpanded():
            return event.token
        case TreeVerified():
            return event.choice
        case RoundDone():
            bonus = () if event.bonus is None else (event.bonus,)
            return chain(event.tree.token, event.tokens, bonus)
        case TurnFinished():
            return event.token_ids
        case _:
            return ()


class Recorder:
    """Makes the records of one stream, remembering which ids have had their text told."""

    def __init__(self, token_text: TokenTextFn) -> None:
        self._token_text = token_text
        self._told: set[int] = set()

    def records(self, event: Event) -> list[dict[str, Any]]:
        """The event's record, and a `Vocab` record where it brings new ids.

        The `Vocab` record comes first, except after a header, which opens the stream.
        """
        out = [encode(event)]
        new = set(token_ids(event)) - self._told
        if new:
            self._told |= new
            vocab = encode_vocab({i: self._token_text(i) for i in sorted(new)})
            out.insert(1 if isinstance(event, RunStarted) else 0, vocab)
        return out

    def lines(self, event: Event) -> bytes:
        """The same as lines of a trace, which is all that most want of it."""
        return b"".join(map(_line, self.records(event)))


def records(events: Iterable[Event], token_text: TokenTextFn) -> Iterator[dict[str, Any]]:
    """The stream of records that a trace of `events` consists of."""
    recorder = Recorder(token_text)
    for event in events:
        yield from recorder.records(event)


def to_line(record: Mapping[str, Any]) -> bytes:
    """One line of a trace, UTF-8, line break included.

    Raises:
        ValueError: a float in the record is not finite.
    """
    text = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # UTF-8 has no lone surrogates; their backslash escape happens to be JSON's own.
    return text.encode("utf-8", "backslashreplace") + b"\n"


def _line(record: Mapping[str, Any]) -> bytes:
    """`to_line` for what was made here, which holds no float that is not finite."""
    try:
        return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # a lone surrogate, or more than 64 bits
        return to_line(record)

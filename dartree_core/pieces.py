"""What a single token id says: the piece of text, or of bytes, behind it.

A vocabulary stores pieces in one of two alphabets. Byte-level BPE (GPT-2, Llama 3, Qwen) writes
every byte as a printable character, so " the" is stored as "Ġthe". SentencePiece writes a blank
as "▁" and a byte it has no piece for as "<0xE2>". Decoding one id with the tokenizer would undo
that, but it also drops leading blanks and half characters; here they stay.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenText(NamedTuple):
    """A token's text as it appears in the middle of a sentence.

    Attributes:
        text: The text; with U+FFFD in it where the bytes are not UTF-8 by themselves.
        raw: The bytes of such a token, otherwise None.
    """

    text: str
    raw: bytes | None = None

    @classmethod
    def of_bytes(cls, raw: bytes) -> TokenText:
        """The text of some bytes, which are kept only where they are not valid UTF-8."""
        try:
            return cls(raw.decode("utf-8"))
        except UnicodeDecodeError:
            return cls(raw.decode("utf-8", "replace"), raw)


TokenTextFn: TypeAlias = Callable[[int], TokenText]


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet, printable character to byte.

    Bytes that are printable in Latin-1 stand for themselves; the other 68 take the code points
    from U+0100 on, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(0x100) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


_BYTES = _byte_alphabet()


class TokenTexts:
    """Token id to `TokenText`, for any tokenizer with a vocabulary of pieces.

    Args:
        tokenizer: Anything with transformers' `convert_ids_to_tokens(int)` and `get_vocab()`;
            `added_tokens_decoder` is used where it exists. None, for a model without a
            tokenizer, reads every id as `<id>`.
    """

    def __init__(self, tokenizer: Any | None) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, TokenText] = {}
        self._added: frozenset[int] = frozenset()
        self._blank = ""
        if tokenizer is not None:
            self._added = frozenset(getattr(tokenizer, "added_tokens_decoder", ()))
            self._blank = _blank_mark(tokenizer.get_vocab())

    def __call__(self, token: int) -> TokenText:
        """The token's text; an id outside the vocabulary (padding rows) reads as `<id>`."""
        found = self._known.get(token)
        if found is None:
            found = self._known[token] = self._look_up(token)
        return found

    def _look_up(self, token: int) -> TokenText:
        piece: str | bytes | None = None
        if self._tokenizer is not None:
            try:
                piece = self._tokenizer.convert_ids_to_tokens(token)
            except (IndexError, KeyError, OverflowError):
                piece = None  # slow tokenizers raise where fast ones return None
        if piece is None:
            return TokenText(f"<{token}>")
        if isinstance(piece, bytes):  # tiktoken-style vocabularies
            return TokenText.of_bytes(piece)
        if self._blank == "▁":
            byte = _BYTE_PIECE.fullmatch(piece)
            if byte:
                return TokenText.of_bytes(bytes.fromhex(byte[1]))
            return TokenText(piece.replace("▁", " "))
        if self._blank == "Ġ" and token not in self._added:
            codes = [_BYTES.get(char, -1) for char in piece]
            if -1 not in codes:
                return TokenText.of_bytes(bytes(codes))
        return TokenText(piece)


def _blank_mark(vocabulary: dict[str | bytes, int]) -> str:
    """How the vocabulary writes a blank: "Ġ" (byte level), "▁" (SentencePiece) or "" (as is).

    Both are letters that may also occur as themselves, so the one that starts more pieces wins.
    """
    votes = {"Ġ": 0, "▁": 0}
    for piece in vocabulary:
        if isinstance(piece, str) and piece[:1] in votes:
            votes[piece[:1]] += 1
    best = max(votes, key=lambda mark: votes[mark])
    return best if votes[best] else ""

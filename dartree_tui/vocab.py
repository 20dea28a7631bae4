"""Token ids and their texts, as the stream has told them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from dartree_core.glyphs import show_token
from dartree_core.pieces import TokenText

Words: TypeAlias = Mapping[int, str | bytes]
"""Token id to its text, or to its bytes where a token alone is no valid UTF-8."""


class Vocab(Words):
    """Token id to its text, or to its bytes where a token alone is no valid UTF-8.

    Attributes:
        words: What the stream has told; a reader's thread may add to it at any time.
    """

    def __init__(self, words: dict[int, TokenText] | None = None) -> None:
        self.words = {} if words is None else words

    def text(self, token: int) -> str:
        """The token's own text, blanks and line breaks as they are; empty when unknown."""
        word = self.words.get(token)
        return "" if word is None else word.text

    def shown(self, token: int) -> str:
        """The text for a screen, with nothing invisible in it; `#id` when unknown."""
        word = self.words.get(token)
        return f"#{token}" if word is None else show_token(word.text, word.raw)

    def find(self, needle: str) -> set[int]:
        """Ids of known tokens whose text, shown or real, contains `needle`, ignoring case."""
        want = needle.casefold()
        return {
            token
            for token, word in list(self.words.items())
            if want in word.text.casefold() or want in self.shown(token).casefold()
        }

    def __getitem__(self, token: int) -> str | bytes:
        word = self.words[token]
        return word.text if word.raw is None else word.raw

    def __iter__(self) -> Iterator[int]:
        return iter(list(self.words))

    def __len__(self) -> int:
        return len(self.words)

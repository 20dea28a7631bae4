"""Texts of single tokens, checked against what the tokenizers' own decoders make of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

from dartree_core.pieces import TokenText, TokenTexts
from tests.core.test_text import byte_level, id_of, sentencepiece


def wrapped(tokenizer: Tokenizer, **special: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


@pytest.mark.parametrize("make", [byte_level, sentencepiece], ids=lambda f: f.__name__)
def test_every_token_reads_as_it_decodes_between_others(
    make: Callable[[], Tokenizer],
) -> None:
    tokenizer = make()
    texts = TokenTexts(wrapped(tokenizer))
    anchor = id_of(tokenizer, "the")
    for token in range(tokenizer.get_vocab_size()):
        text, raw = texts(token)
        shown = tokenizer.decode([anchor, token, anchor], skip_special_tokens=False)
        assert shown == f"the{text}the"
        assert (raw is None) == ("\ufffd" not in text)
        if raw is not None:
            assert raw.decode("utf-8", "replace") == text


def test_torn_characters_join_to_whole_ones() -> None:
    for tokenizer, pieces in (
        (byte_level(), ["ðŁ", "ĺĢ"]),
        (sentencepiece(), ["<0xF0>", "<0x9F>", "<0x98>", "<0x80>"]),
    ):
        texts = TokenTexts(wrapped(tokenizer))
        parts = [texts(id_of(tokenizer, p)).raw or b"" for p in pieces]
        assert b"".join(parts).decode() == "😀"


def test_special_and_added_tokens_are_literal() -> None:
    tokenizer = Tokenizer.from_str(byte_level().to_str())
    # "é" and "Ġ" are letters of the byte alphabet too; added as tokens they mean themselves.
    tokenizer.add_tokens([AddedToken("éĠ", normalized=False)])
    tokenizer.add_special_tokens(["<｜begin▁of▁text｜>"])
    texts = TokenTexts(wrapped(tokenizer, bos_token="<｜begin▁of▁text｜>"))
    assert texts(id_of(tokenizer, "éĠ")) == TokenText("éĠ")
    assert texts(id_of(tokenizer, "<｜begin▁of▁text｜>")) == TokenText("<｜begin▁of▁text｜>")
    assert texts(id_of(tokenizer, "<|end|>")) == TokenText("<|end|>")


def test_ids_outside_the_vocabulary_read_as_numbers() -> None:
    texts = TokenTexts(wrapped(byte_level()))
    assert texts(byte_level().get_vocab_size() + 5) == TokenText(
        f"<{byte_level().get_vocab_size() + 5}>"
    )


def test_without_a_tokenizer_ids_read_as_numbers() -> None:
    assert TokenTexts(None)(123) == TokenText("<123>")


class Plain:
    """A slow tokenizer whose vocabulary is words, or bytes as in tiktoken files."""

    def __init__(self, pieces: list[str | bytes]) -> None:
        self.pieces = pieces

    def get_vocab(self) -> dict[str | bytes, int]:
        return {p: i for i, p in enumerate(self.pieces)}

    def convert_ids_to_tokens(self, token: int) -> str | bytes:
        return self.pieces[token]


def test_plain_and_bytes_vocabularies() -> None:
    texts = TokenTexts(Plain(["café", b" the", b"\xe2\x80", "Ünder"]))
    assert texts(0) == TokenText("café")
    assert texts(1) == TokenText(" the")
    assert texts(2) == TokenText("\ufffd", b"\xe2\x80")
    assert texts(3) == TokenText("Ünder")
    assert texts(4) == TokenText("<4>")

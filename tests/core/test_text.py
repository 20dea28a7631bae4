"""Detokenisation and stop strings, on real tokenizers of the two kinds there are."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from dartree_core.text import AnswerText, Decode, IncrementalDetokenizer, StopMatcher

WORDS = ["the", " the", " cat", "s", " s", "at", ",", ".", "\n", "  ", " é", "日本", "😀", "’"]
BYTE_CHARS = pre_tokenizers.ByteLevel.alphabet()


@cache
def byte_level() -> Tokenizer:
    """All 256 bytes, some words, and pieces that are torn characters with text around them."""
    table = _gpt2_table()
    pieces = [b"\xf0\x9f", b" \xf0\x9f", b"\x98\x80", b"\x80 a", b"\xe6\x97", b"\xa5\xe6", b"\xff"]
    vocab = [table[b] for b in range(256)]
    for raw in [w.encode() for w in WORDS] + pieces:
        piece = "".join(table[b] for b in raw)
        if piece not in vocab:
            vocab.append(piece)
    tokenizer = Tokenizer(models.BPE({p: i for i, p in enumerate(vocab)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer


def _gpt2_table() -> dict[int, str]:
    """Byte to character, read off the tokenizers library rather than off the code under test."""
    table: dict[int, str] = {}
    encoder = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for char in [chr(c) for c in range(0x250)] + ["日", "😀", "\u07ff", "\u3fff"]:
        raw = char.encode()
        shown = encoder.pre_tokenize_str(char)[0][0]
        table.update(zip(raw, shown, strict=True))
    left = [b for b in range(256) if b not in table]
    for byte, char in zip(left, sorted(set(BYTE_CHARS) - set(table.values())), strict=True):
        table[byte] = char
    return table


@cache
def sentencepiece() -> Tokenizer:
    """Llama 2's decoder: blanks as ▁, bytes as <0xNN>, the first blank stripped."""
    vocab = ["<unk>", *(f"<0x{b:02X}>" for b in range(256)), "▁"]
    vocab += [w.replace(" ", "▁") for w in WORDS if w != "  "] + ["▁▁"]
    tokenizer = Tokenizer(
        models.BPE({p: i for i, p in enumerate(vocab)}, [], byte_fallback=True, unk_token="<unk>")
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<s>"])
    return tokenizer


def id_of(tokenizer: Tokenizer, piece: str) -> int:
    found = tokenizer.token_to_id(piece)
    assert found is not None
    return found


def decode_of(tokenizer: Tokenizer) -> Decode:
    return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True))


def ids_of(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    size = tokenizer.get_vocab_size()
    words = st.integers(256, size - 1)
    return st.lists(st.one_of(words, st.integers(0, size - 1)), max_size=80)


def pushed(decode: Decode, ids: list[int]) -> Iterator[str]:
    detokenizer = IncrementalDetokenizer(decode)
    for token in ids:
        yield detokenizer.push(token)
    yield detokenizer.flush()


def byte_ids(text: str | bytes) -> list[int]:
    table = _gpt2_table()
    raw = text.encode() if isinstance(text, str) else text
    return [id_of(byte_level(), table[b]) for b in raw]


@given(ids_of(byte_level()))
@example(byte_ids("naïve 😀😀 日本語 \ufffd\ufffd end"))
@example(byte_ids(b"\x80" * 100 + "日".encode() * 30 + b"a"))
@example(byte_ids("\ufffd" * 50))
@example(byte_ids(b"\x80" + "\ufffd".encode() * 50))
@example(byte_ids(b"\x80\x80" + "\ufffd".encode() * 50))
@example(byte_ids(b"\x80" * 31 + "😀".encode()))
def test_byte_level_chunks_join_to_the_full_decode_for_any_ids(ids: list[int]) -> None:
    decode = decode_of(byte_level())
    assert "".join(pushed(decode, ids)) == decode(ids)


@given(st.text(max_size=60))
@example("\ufffd")
@example("👨‍👩‍👧 ok")
def test_no_replacement_character_unless_the_text_has_one(text: str) -> None:
    chunks = list(pushed(decode_of(byte_level()), byte_ids(text)))
    assert "".join(chunks) == text
    if "\ufffd" not in text:
        assert all("\ufffd" not in c for c in chunks)


@given(st.text(max_size=60))
def test_text_is_given_at_its_last_byte(text: str) -> None:
    """Nothing finished is held: after every byte all whole characters are out."""
    detokenizer = IncrementalDetokenizer(decode_of(byte_level()))
    decoder = codecs.getincrementaldecoder("utf-8")()
    got = expected = ""
    for byte, token in zip(text.encode(), byte_ids(text), strict=True):
        got += detokenizer.push(token)
        expected += decoder.decode(bytes([byte]))
        assert got == expected.rstrip("\ufffd") or got == expected


def test_whole_characters_before_a_torn_one_are_given() -> None:
    table = _gpt2_table()
    torn = id_of(byte_level(), "".join(table[b] for b in b" \xf0\x9f"))
    rest = id_of(byte_level(), "".join(table[b] for b in b"\x98\x80"))
    detokenizer = IncrementalDetokenizer(decode_of(byte_level()))
    assert [detokenizer.push(torn), detokenizer.push(rest)] == [" ", "😀"]


@st.composite
def spelled(draw: st.DrawFn) -> tuple[str, list[int]]:
    """Text and SentencePiece ids for it: pieces where there are some, else bytes."""
    tokenizer = sentencepiece()
    parts = draw(st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=4)), max_size=20))
    ids: list[int] = []
    for part in parts:
        piece = tokenizer.token_to_id(part.replace(" ", "▁"))
        if piece is not None and draw(st.booleans()):
            ids.append(piece)
        else:
            ids += [1 + b for b in part.encode()]
        if draw(st.integers(0, 9)) == 0:
            ids.append(id_of(tokenizer, "<s>"))
    return "".join(parts), ids


@given(spelled())
def test_sentencepiece_chunks_join_to_the_full_decode(case: tuple[str, list[int]]) -> None:
    text, ids = case
    decode = decode_of(sentencepiece())
    chunks = list(pushed(decode, ids))
    assert "".join(chunks) == decode(ids)
    if "\ufffd" not in text:
        assert all("\ufffd" not in c for c in chunks)


@given(ids_of(sentencepiece()))
def test_a_decoder_that_revokes_loses_no_later_text(ids: list[int]) -> None:
    """An invalid byte cannot unsay text; what follows it still comes out whole."""
    tokenizer = sentencepiece()
    tail = [id_of(tokenizer, w) for w in ("▁the", "▁cat", "s", "<0x0A>")]
    joined = "".join(pushed(decode_of(tokenizer), [*ids, *tail]))
    assert joined.removeprefix(" ").endswith("the cats\n")


def test_what_a_decoder_revokes_stays_as_it_was_given() -> None:
    """Decoded whole, the stray byte makes all four U+FFFD; given out, the apostrophe is not."""
    tokenizer = sentencepiece()
    ids = [id_of(tokenizer, p) for p in ("<0xE2>", "<0x80>", "<0x99>", "<0xFF>", "▁the")]
    assert decode_of(tokenizer)(ids) == "\ufffd\ufffd\ufffd\ufffd the"
    assert list(pushed(decode_of(tokenizer), ids)) == ["", "", "’", "", "\ufffd the", ""]


def test_a_long_run_of_skipped_tokens_loses_no_blank() -> None:
    tokenizer = sentencepiece()
    the, cat, skipped = (id_of(tokenizer, p) for p in ("▁the", "▁cat", "<s>"))
    ids = [the, *[skipped] * 100, cat]
    assert "".join(pushed(decode_of(tokenizer), ids)) == decode_of(tokenizer)(ids) == "the cat"


@pytest.mark.parametrize("run", [31, 32, 33, 34, 100])
def test_a_character_is_whole_around_a_long_run_of_skipped_tokens(run: int) -> None:
    tokenizer = byte_level()
    table = _gpt2_table()
    first, second = (id_of(tokenizer, table[byte]) for byte in "߾".encode())
    ids = [first, *[id_of(tokenizer, "<|end|>")] * run, second]
    assert "".join(pushed(decode_of(tokenizer), ids)) == "߾"


@pytest.mark.parametrize("run", [31, 32, 33, 34, 100])
def test_a_lone_blank_after_skipped_tokens_is_not_taken_for_one(run: int) -> None:
    tokenizer = sentencepiece()
    blank, skipped = id_of(tokenizer, "▁"), id_of(tokenizer, "<s>")
    ids = [*[skipped] * run, blank, blank]
    assert "".join(pushed(decode_of(tokenizer), ids)) == decode_of(tokenizer)(ids) == " "


def test_leading_blank_of_a_first_lone_blank_piece() -> None:
    tokenizer = sentencepiece()
    ids = [id_of(tokenizer, "▁"), id_of(tokenizer, "▁the")]
    assert "".join(pushed(decode_of(tokenizer), ids)) == decode_of(tokenizer)(ids) == " the"


@pytest.mark.parametrize(
    "ids",
    [
        byte_ids("plain words " * 300),
        byte_ids(b"\x80" * 3000),
        [id_of(byte_level(), "<|end|>")] * 3000,
        [*byte_ids(b"\xff"), *[id_of(byte_level(), "<|end|>")] * 3000],
    ],
    ids=["words", "stray bytes", "skipped tokens", "skipped after stray"],
)
def test_work_is_linear_in_the_answer(ids: list[int]) -> None:
    def work(tokens: list[int]) -> int:
        decoded = 0

        def counting(window: list[int]) -> str:
            nonlocal decoded
            decoded += len(window)
            return decode_of(byte_level())(window)

        list(pushed(counting, tokens))
        return decoded

    assert work(ids) <= 2.2 * work(ids[: len(ids) // 2])
    assert work(ids) <= 100 * len(ids)


# Stop strings

short = st.text("ab<>", max_size=30)
stops = st.lists(st.text("ab<>", min_size=1, max_size=5), max_size=4)


@st.composite
def cut(draw: st.DrawFn, text: str) -> list[str]:
    at = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[i:j] for i, j in zip([0, *at], [*at, len(text)], strict=True)]


def reference(text: str, stop: list[str]) -> tuple[str, str | None]:
    """The definition, by brute force: character by character, the longest that is complete."""
    for end in range(1, len(text) + 1):
        ending = [s for s in stop if text[:end].endswith(s)]
        if ending:
            best = max(ending, key=len)
            return text[: end - len(best)], best
    return text, None


@given(st.data(), short, stops)
def test_matches_the_definition_however_the_text_is_cut(
    data: st.DataObject, text: str, stop: list[str]
) -> None:
    matcher = StopMatcher(stop)
    out = ""
    for piece in data.draw(cut(text)):
        out += matcher.push(piece)
        kept, _ = reference(text, stop)
        assert kept.startswith(out)  # no part of a stop string ever leaks
    out += matcher.flush()
    assert (out, matcher.matched) == reference(text, stop)


@given(short, st.text("ab<>", min_size=1, max_size=5))
def test_holds_back_no_more_than_it_must(text: str, stop: str) -> None:
    matcher = StopMatcher([stop])
    given_out = matcher.push(text)
    if matcher.matched is None:
        held = text[len(given_out) :]
        assert stop.startswith(held)
        assert not any(stop.startswith(text[i:]) for i in range(len(given_out)))


def test_list_order_does_not_matter() -> None:
    for stop in (["later", "now"], ["now", "later"]):
        matcher = StopMatcher(stop)
        assert matcher.push("right now or later") == "right "
        assert matcher.matched == "now"


def test_a_stop_string_inside_the_beginning_of_another() -> None:
    matcher = StopMatcher(["abcd", "bc"])
    assert matcher.push("xab") == "x"
    assert matcher.push("cd") == "a"
    assert matcher.matched == "bc"


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["x", ""])


# Both together


@given(st.data(), ids_of(byte_level()), st.lists(st.sampled_from(WORDS), max_size=3))
def test_answer_deltas_join_to_the_text(
    data: st.DataObject, ids: list[int], stop: list[str]
) -> None:
    decode = decode_of(byte_level())
    answer = AnswerText(decode, stop)
    joined, used = "", 0
    for token in ids:
        used += 1
        stopped = answer.push(token)
        if data.draw(st.booleans()):
            new, (start, end) = answer.delta()
            assert (start, end) == (len(joined), len(joined) + len(new))
            joined += new
            assert answer.text == joined
        if stopped:
            break
    answer.flush()
    new, span = answer.delta()
    joined += new
    assert span == (len(joined) - len(new), len(joined))
    assert answer.delta() == ("", (len(joined), len(joined)))
    assert answer.token_ids == ids[:used]
    assert (joined, answer.matched) == reference(decode(ids[:used]), stop)
    assert answer.text == joined


def test_a_stop_string_across_tokens_leaks_nothing_and_keeps_its_ids() -> None:
    answer = AnswerText(decode_of(byte_level()), ["<end>"])
    ids = byte_ids("so <en, then <end>")
    seen = []
    for token in ids[:-1]:
        assert not answer.push(token)
        seen.append(answer.delta()[0])
    assert answer.push(ids[-1])
    answer.flush()
    seen.append(answer.delta()[0])
    assert "".join(seen) == "so <en, then "
    assert answer.token_ids == ids
    assert answer.matched == "<end>"
    with pytest.raises(ValueError, match="<end>"):
        answer.push(ids[0])


def test_flush_gives_back_what_only_looked_like_a_stop_string() -> None:
    answer = AnswerText(decode_of(byte_level()), ["<end>"])
    for token in byte_ids(b"a <en"):
        answer.push(token)
    assert answer.delta() == ("a ", (0, 2))
    answer.flush()
    assert answer.delta() == ("<en", (2, 5))

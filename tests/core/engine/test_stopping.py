"""Wherever a turn ends, its ids, text and reason are plain decoding's."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import pytest

from dartree_core.config import METHODS, DecodeConfig, TreeConfig
from dartree_core.engine import Decoder
from dartree_core.errors import ConfigError
from dartree_core.events import PrefillDone, TurnFinished
from tests.core import tiny

PROMPT = tiny.PROMPT
LENGTH = 20
TEXT = "the cat, 你好 🙂 sat."
DRAFTERS = ("dartree", "ddtree", "domino")


def trained() -> Decoder:
    return tiny.trained("untied-shifted")


def stopping_at(decoder: Decoder, eos: Iterable[int]) -> Decoder:
    twin = copy.copy(decoder)
    twin.eos = frozenset(eos)
    return twin


def answer_of(decoder: Decoder, **changes: Any) -> tuple[list[int], str, str]:
    config = DecodeConfig(max_new_tokens=LENGTH).with_changes(**changes)
    found = tiny.events(decoder, PROMPT, config)
    result = tiny.finish(found)
    streamed = [e.first_token for e in found if isinstance(e, PrefillDone)]
    streamed += [t for e in tiny.rounds(found) for t in e.tokens]
    assert streamed == list(result.token_ids)
    for e in tiny.rounds(found):
        assert len(e.provenance) == len(e.tokens)
        assert (e.bonus is None) == ("bonus" not in e.provenance)
    return list(result.token_ids), result.text, result.reason


def whole() -> list[int]:
    return answer_of(trained(), method="ar")[0]


@pytest.mark.parametrize("method", DRAFTERS)
def test_each_emitted_token_as_end_of_sequence(method: str) -> None:
    """An end inside an accepted path cuts what was accepted behind it."""
    ids = whole()
    for token in dict.fromkeys(ids):
        decoder = stopping_at(trained(), [token])
        expected = ids[: ids.index(token) + 1]
        assert answer_of(decoder, method=method) == (expected, "", "eos")
        assert answer_of(decoder, method="ar") == (expected, "", "eos")


@pytest.mark.parametrize("method", DRAFTERS)
def test_several_end_tokens_the_first_to_come_ends(method: str) -> None:
    ids = whole()
    decoder = stopping_at(trained(), [ids[9], ids[4], 1])
    assert answer_of(decoder, method=method)[0] == ids[: min(map(ids.index, (ids[9], ids[4]))) + 1]


@pytest.mark.parametrize("method", DRAFTERS)
def test_a_drafted_end_token_ends_nothing_without_the_targets_consent(method: str) -> None:
    config = DecodeConfig(method=method, max_new_tokens=LENGTH)  # type: ignore[arg-type]
    drafted = {t for e in tiny.rounds(tiny.events(trained(), PROMPT, config)) for t in e.tree.token}
    rejected = drafted - set(whole())
    assert rejected
    decoder = stopping_at(trained(), rejected)
    assert answer_of(decoder, method=method) == (whole(), "", "length")


@pytest.mark.parametrize("method", METHODS)
def test_first_token_is_checked_for_the_end(method: Any) -> None:
    decoder = stopping_at(trained(), [whole()[0]])
    found = tiny.events(decoder, PROMPT, DecodeConfig(method=method))
    assert tiny.finish(found).token_ids == whole()[:1]
    assert tiny.finish(found).reason == "eos"
    assert not tiny.rounds(found), "work was done after the end"


@pytest.mark.parametrize("method", DRAFTERS)
def test_end_tokens_can_be_ignored(method: str) -> None:
    decoder = stopping_at(trained(), whole())
    assert answer_of(decoder, method=method, ignore_eos=True) == (whole(), "", "length")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("limit", range(1, LENGTH + 1))
def test_limit_is_exact(limit: int, method: Any) -> None:
    config = DecodeConfig(method=method, max_new_tokens=limit)
    found = tiny.events(trained(), PROMPT, config)
    result = tiny.finish(found)
    assert (result.token_ids, result.reason) == (whole()[:limit], "length")
    emitted = 1
    for e in tiny.rounds(found):
        assert emitted < limit, "a round ran after the limit"
        assert e.tree.height <= limit - emitted - 1, "drafted what could not be emitted"
        emitted += len(e.tokens)


@pytest.mark.parametrize("method", DRAFTERS)
def test_an_end_at_the_limit_is_an_end(method: str) -> None:
    ids = whole()
    at = next(i for i in range(5, LENGTH) if ids.index(ids[i]) == i)
    decoder = stopping_at(trained(), [ids[at]])
    expected = ids[: at + 1]
    for limit, reason in ((at + 1, "eos"), (at + 2, "eos"), (at, "length")):
        got = answer_of(decoder, method=method, max_new_tokens=limit)
        assert got == (expected[:limit], "", reason)


# Stop strings, with a real byte-level tokenizer


def cut_by_hand(stop: list[str]) -> tuple[list[int], str, str]:
    """Decode prefixes of the answer until one holds a stop string."""
    speller = tiny.tokenizer()
    ids = [*speller(TEXT).input_ids, speller.eos_token_id]
    for end in range(1, len(ids) + 1):
        text = speller.decode(ids[:end], skip_special_tokens=True).rstrip("\ufffd")
        ends = [(text.find(s) + len(s), text.find(s)) for s in stop if s in text]
        if ends:
            return ids[:end], text[: min(ends)[1]], "stop_string"
    return ids, TEXT, "eos"


SUBSTRINGS = sorted({TEXT[i:j] for i in range(len(TEXT)) for j in range(i + 1, i + 5)})


def test_each_substring_of_the_text_as_stop_string() -> None:
    decoder = tiny.saying(TEXT)
    for stop in [*SUBSTRINGS, TEXT]:
        found = answer_of(decoder, stop=(stop,), max_new_tokens=99)
        assert found == cut_by_hand([stop]), repr(stop)


@pytest.mark.parametrize("method", METHODS)
def test_stop_strings_by_every_method(method: Any) -> None:
    decoder = tiny.saying(TEXT)
    for stop in SUBSTRINGS[::9]:
        found = answer_of(decoder, stop=(stop,), max_new_tokens=99, method=method)
        assert found == cut_by_hand([stop]), repr(stop)


@pytest.mark.parametrize("stop", [["sat", "cat"], ["好 🙂", "cat, ", "at"], ["zzz", "🙂"]], ids=str)
@pytest.mark.parametrize("block", [2, 3, 6])
def test_the_earliest_match_wins_whatever_the_order_of_the_list(
    stop: list[str], block: int
) -> None:
    decoder = tiny.saying(TEXT)
    for order in (stop, stop[::-1]):
        found = answer_of(decoder, stop=tuple(order), max_new_tokens=99, block_size=block)
        assert found == cut_by_hand(stop)


@pytest.mark.parametrize("block", [2, 3, 4, 5, 6])
def test_a_stop_string_split_across_rounds_leaks_nothing(block: int) -> None:
    """Whatever is streamed is final: no delta shows the beginning of a stop string."""
    decoder = tiny.saying(TEXT)
    for stop in ("cat, 你好 🙂 sat", "🙂 s", "好 🙂"):
        config = DecodeConfig(stop=(stop,), tree=TreeConfig(block_size=block))
        found = tiny.events(decoder, PROMPT, config)
        streamed = "".join(getattr(e, "text_delta", "") for e in found)
        assert streamed == tiny.finish(found).text == TEXT[: TEXT.index(stop)]


def test_a_stop_string_that_never_completes_is_given_out_in_the_end() -> None:
    decoder = tiny.saying(TEXT)
    found = tiny.events(decoder, PROMPT, DecodeConfig(stop=("sat. And more",)))
    assert (tiny.finish(found).text, tiny.finish(found).reason) == (TEXT, "eos")
    assert "".join(getattr(e, "text_delta", "") for e in found) == TEXT


def test_first_token_may_complete_a_stop_string() -> None:
    found = tiny.events(tiny.saying(TEXT), PROMPT, DecodeConfig(stop=("t",)))
    result = tiny.finish(found)
    assert (len(result.token_ids), result.text, result.reason) == (1, "", "stop_string")
    assert not tiny.rounds(found)


def test_the_limit_does_not_mask_a_stop_string() -> None:
    ids, text, _ = cut_by_hand(["cat"])
    decoder = tiny.saying(TEXT)
    for limit in (len(ids), len(ids) + 1):
        got = answer_of(decoder, stop=("cat",), max_new_tokens=limit)
        assert got == (ids, text, "stop_string")
    assert answer_of(decoder, stop=("cat",), max_new_tokens=len(ids) - 1)[2] == "length"


@pytest.mark.parametrize("limit", range(1, 24))
def test_text_at_every_limit_equals_the_plain_text(limit: int) -> None:
    """The limit may fall inside a character; the rest of it is U+FFFD, as in a full decode."""
    decoder = tiny.saying(TEXT)
    ids = [*tiny.tokenizer()(TEXT).input_ids, tiny.tokenizer().eos_token_id][:limit]
    text = tiny.tokenizer().decode(ids, skip_special_tokens=True)
    plain = answer_of(decoder, method="ar", max_new_tokens=limit)
    assert answer_of(decoder, max_new_tokens=limit) == plain
    assert plain[:2] == (ids, text)


def test_the_end_token_is_no_text_but_an_id() -> None:
    ids, text, reason = answer_of(tiny.saying(TEXT), max_new_tokens=99)
    assert ids[-1] == tiny.tokenizer().eos_token_id
    assert (text, reason) == (TEXT, "eos")


def test_stop_strings_without_a_tokenizer_are_refused() -> None:
    with pytest.raises(ConfigError, match="no tokenizer"):
        trained().stream(PROMPT, DecodeConfig(stop=("x",)))


def test_turn_finished_is_the_last_event() -> None:
    found = tiny.events(trained(), PROMPT, DecodeConfig(max_new_tokens=5))
    assert [isinstance(e, TurnFinished) for e in found] == [False] * (len(found) - 1) + [True]

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dartree_core.bench.check import compare, first_difference
from dartree_core.bench.records import Row, TurnRecord
from dartree_core.bench.speakers import Asker, DecoderSpeaker, converse
from dartree_core.bench.stop import Stop
from dartree_core.config import DecodeConfig
from dartree_core.engine import Decoder


def turn(ids: Sequence[int]) -> TurnRecord:
    return TurnRecord(1, 0, list(ids), "", "length", len(ids) - 1, 1.0, 1.0, {})


@given(st.lists(st.integers(0, 3), min_size=1), st.lists(st.integers(0, 3), min_size=1))
def test_the_first_difference_is_where_equal_beginnings_end(a: list[int], b: list[int]) -> None:
    same = turn([1, 2])
    found = first_difference([same, turn(a)], [same, turn(b)])
    if a == b:
        assert found is None
    else:
        assert found is not None
        number, index = found
        assert number == 1
        assert a[:index] == b[:index]
        assert a[index : index + 1] != b[index : index + 1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_false_token_is_found_and_scored(decoder: Decoder, temperature: float) -> None:
    config = DecodeConfig(method="ar", max_new_tokens=12).with_changes(temperature=temperature)
    row = Row("r", (), (5, 17, 3, 29))
    prompts, plain = converse(Asker(decoder), DecoderSpeaker(decoder, Stop()), row, config)
    assert compare(decoder.target, prompts, plain, plain, config) is None
    ids = list(plain[0].token_ids)
    ids[5] = (ids[5] + 1) % 500
    found = compare(decoder.target, prompts, [replace(plain[0], token_ids=ids)], plain, config)
    assert found is not None
    assert (found["turn"], found["index"]) == (0, 5)
    assert (found["token"], found["expected"]) == (ids[5], plain[0].token_ids[5])
    assert found["margin"] > 0
    assert found["real"] is True


def test_an_answer_that_just_ends_has_no_margin(decoder: Decoder) -> None:
    config = DecodeConfig(method="ar", max_new_tokens=6)
    prompts, plain = converse(
        Asker(decoder), DecoderSpeaker(decoder, Stop()), Row("r", (), (5, 17)), config
    )
    short = replace(plain[0], token_ids=plain[0].token_ids[:4])
    found = compare(decoder.target, prompts, [short], plain, config)
    assert found is not None
    assert (found["index"], found["token"], found["margin"], found["real"]) == (4, None, None, None)
    found = compare(decoder.target, prompts, plain, [short], config)
    assert found is not None
    assert (found["index"], found["expected"], found["margin"], found["real"]) == (
        *(4, None, None),
        None,
    )


def test_a_token_that_plain_decoding_would_choose_today_is_within_rounding(
    decoder: Decoder,
) -> None:
    config = DecodeConfig(method="ar", max_new_tokens=6)
    prompts, plain = converse(
        Asker(decoder), DecoderSpeaker(decoder, Stop()), Row("r", (), (5, 17)), config
    )
    ids = list(plain[0].token_ids)
    ids[2] += 1
    found = compare(decoder.target, prompts, plain, [replace(plain[0], token_ids=ids)], config)
    assert found is not None
    assert (found["index"], found["margin"], found["real"]) == (2, 0.0, False)

"""Stop tokens and limits: wherever a stop token stands, the ids are plain decoding's."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dartree_core.config import DecodeConfig
from dartree_core.engine import Decoder
from tests.conformance import recorded

CASES = [
    pytest.param(path, i, id=f"{path.stem}-{i}-{record['case']}")
    for path in recorded.files("generate/stop_pair*.json*")
    for i, record in enumerate(recorded.read(path)["records"])
]


def stopping_at(decoder: Decoder, ids: list[int] | None) -> Decoder:
    twin = copy.copy(decoder)
    twin.eos = frozenset(ids or ())
    return twin


@pytest.mark.parametrize("method", ["dartree", "domino", "ar"])
@pytest.mark.parametrize(("path", "index"), CASES)
def test_stop(path: Any, index: int, method: Any) -> None:
    data = recorded.read(path)
    record = data["records"][index]
    config = DecodeConfig(method=method, max_new_tokens=record["max_new_tokens"])
    if method == "dartree":
        config = recorded.decode_config(record["config"], max_new_tokens=record["max_new_tokens"])
    decoder = stopping_at(recorded.decoder(data["pair"]), record["stop_token_ids"])
    result = decoder.generate(data["prompts"][str(record["prompt"])], config)
    assert result.token_ids == record["expected_ids"]
    stopped = result.token_ids[-1] in (record["stop_token_ids"] or ())
    assert result.reason == ("eos" if stopped else "length")

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import fields

import pytest
from hypothesis import given

from dartree_core.errors import TraceError
from dartree_core.events import (
    KINDS,
    SCHEMA_VERSION,
    Calibrated,
    DepthExpanded,
    Event,
    LoadProgress,
    PrefillDone,
    RoundDone,
    RunFailed,
    RunStarted,
    TurnFinished,
    decode,
    encode,
)
from tests.core.strategies import decode_text, runs

OTHERS: list[Event] = [
    RunFailed("The disk is full.", "Make room.", "OSError"),
    LoadProgress("target", 3, 10, "tensors"),
    Calibrated("ar", 31.25, 24, 0.768),
]


def through_json(event: Event) -> Event | None:
    return decode(json.loads(json.dumps(encode(event), allow_nan=False)))


@given(runs())
def test_events_survive_json(events: list[Event]) -> None:
    for event in [*events, *OTHERS]:
        back = through_json(event)
        assert type(back) is type(event)
        assert back is not None
        assert encode(back) == encode(event)
        for f in fields(back):
            assert not isinstance(getattr(back, f.name), list), "frozen events hold no lists"


@given(runs())
def test_a_run_adds_up(events: list[Event]) -> None:
    """What every reader relies on, stated once over whole runs."""
    ids: list[int] = []
    joined = ""
    for event in events:
        match event:
            case PrefillDone():
                ids, joined = [event.first_token], ""
            case RoundDone():
                kept = [i for i, k in enumerate(event.tree.kept) if k]
                assert set(event.accepted) <= set(kept)
                assert event.tree.path(event.accepted[-1]) == list(event.accepted)
                assert event.tree.token[0] == ids[-1]
                whole: Sequence[int] = [event.tree.token[i] for i in event.accepted[1:]]
                whole = whole if event.bonus is None else [*whole, event.bonus]
                assert list(event.tokens) == list(whole[: len(event.tokens)])
                ids += event.tokens
            case TurnFinished():
                assert list(event.token_ids) == ids
        if isinstance(event, PrefillDone | RoundDone | TurnFinished):
            assert event.span == (len(joined), len(joined) + len(event.text_delta))
            joined += event.text_delta
        if isinstance(event, TurnFinished):
            assert joined == event.text
            assert decode_text(event.token_ids).startswith(event.text)


def test_kinds_cover_every_event() -> None:
    assert set(KINDS) == {cls.__name__ for cls in Event.__args__}
    assert encode(RunStarted())["schema"] == SCHEMA_VERSION


def test_what_is_not_finite_is_null_and_comes_back_as_nan_in_scores() -> None:
    event = DepthExpanded(0, 0, 1, 2, [1], [5], [0], [-math.inf], [math.nan], [-0.123456])
    data = encode(event)
    assert data["draft_logp"] == [None]
    assert data["path_logp"] == [-0.1235]
    back = decode(data)
    assert isinstance(back, DepthExpanded)
    assert math.isnan(back.draft_logp[0])
    assert math.isnan(back.head_logp[0])


def test_unknown_kinds_and_keys() -> None:
    assert decode({"kind": "Weather", "rain": True}) is None
    assert decode({}) is None
    assert decode({"kind": "RunFailed", "message": "no", "mood": 3}) == RunFailed("no")


def test_an_incomplete_record_is_named() -> None:
    with pytest.raises(TraceError, match=r"PrefillDone record is incomplete.*ttft"):
        decode({"kind": "PrefillDone", "turn": 0, "prompt_tokens": 1, "reused_tokens": 0})

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dartree_core.worker_protocol import (
    OPS,
    Calibrate,
    Cancel,
    Generate,
    Load,
    Pause,
    Reply,
    RequestError,
    Reset,
    Resume,
    Set,
    Shutdown,
    Step,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)

REQUESTS = [
    Load(id=1, bundle="demo", target="somewhere", device="cuda:1", trust_remote_code=True),
    Generate("why?", id="a", config={"method": "ar"}, raw=True, thinking=False),
    Generate([{"role": "user", "content": "why?"}], fresh=True),
    Generate([1, 2, 3], glance_seconds=1.4),
    Pause(),
    Resume(id=0),
    Step(by="round"),
    Cancel(id=7),
    Set({"budget": 8, "temperature": 0.5}),
    Calibrate(tokens=16),
    Reset(),
    Shutdown(),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda r: type(r).__name__)
def test_requests_survive_a_line(request_: object) -> None:
    line = encode_request(request_)  # type: ignore[arg-type]
    assert "\n" not in line
    assert decode_request(line) == request_


def test_every_operation_is_covered() -> None:
    assert {type(r).__name__.lower() for r in REQUESTS} == set(OPS)


def test_replies_survive_a_line() -> None:
    reply = Reply("x", "load", False, "It broke.", "Mend it.", {"a": [1]})
    assert decode_reply(json.loads(json.dumps(encode_reply(reply)))) == reply
    assert decode_reply({"id": 1, "op": "set", "new_key": 3}) == Reply(1, "set")
    with pytest.raises(RequestError, match="incomplete"):
        decode_reply({"kind": "Reply"})


BAD = [
    ("{nope", "not valid JSON"),
    ("[1, 2]", "list, not an object"),
    ("null", "not an object"),
    ('{"op": "dance"}', "no operation 'dance'"),
    ('{"id": 3}', "no operation None"),
    ('{"op": ["load"]}', "no operation"),
    ('{"op": "load", "id": 1.5}', "id must be"),
    ('{"op": "load", "id": true}', "id must be"),
    ('{"op": "load", "colour": 1}', "no field colour"),
    ('{"op": "load", "bundle": 3}', "bundle is 3, which is not text"),
    ('{"op": "load", "trust_remote_code": 1}', "not true or false"),
    ('{"op": "generate"}', "needs a prompt"),
    ('{"op": "generate", "prompt": ""}', "empty or neither"),
    ('{"op": "generate", "prompt": []}', "empty or neither"),
    ('{"op": "generate", "prompt": [1, true]}', "empty or neither"),
    ('{"op": "generate", "prompt": [1, -1]}', "empty or neither"),
    ('{"op": "generate", "prompt": [{"role": "user"}]}', "empty or neither"),
    ('{"op": "generate", "prompt": "x", "config": 3}', "not an object or null"),
    ('{"op": "step", "by": "mile"}', "'stage', 'round'"),
    ('{"op": "set"}', "needs changes"),
    ('{"op": "set", "changes": [1]}', "not an object"),
    ('{"op": "calibrate", "tokens": 0}', "between 4 and 4096"),
]


@pytest.mark.parametrize(("line", "words"), BAD)
def test_bad_requests_name_the_fault(line: str, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        decode_request(line)


def test_the_error_says_which_request_it_was() -> None:
    with pytest.raises(RequestError) as caught:
        decode_request('{"op": "load", "id": "q7", "bundle": 3}')
    assert (caught.value.id, caught.value.op) == ("q7", "load")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
keys = st.sampled_from(["op", "id", "prompt", "changes", "by", "tokens", "config", "bundle"])


@given(
    st.dictionaries(keys, json_values | st.sampled_from(sorted(OPS)), max_size=5).map(json.dumps)
    | st.text()
    | st.binary()
)
def test_any_line_is_read_or_refused(line: str | bytes) -> None:
    with suppress(RequestError):
        request = decode_request(line)
        assert type(request).__name__.lower() in OPS
        assert decode_request(encode_request(request)) == request

"""Replayed rounds are decoding's own."""

from __future__ import annotations

import pytest

from dartree_core.bench.replay import record, replay
from dartree_core.config import DecodeConfig, Method
from dartree_core.engine.coupling import Coupling
from dartree_core.events import RoundDone
from tests.core import tiny

PROMPT = [7, 100, 31, 8, 250]


@pytest.mark.parametrize("method", tiny.DRAFTING)
@pytest.mark.parametrize(
    "settings",
    [{}, {"temperature": 0.8, "coupled": False}, {"temperature": 0.8, "coupled": True}],
    ids=["greedy", "uncoupled", "coupled"],
)
@pytest.mark.parametrize("pair", ["tied-uncorrected-first-slot", "untied-shifted"])
def test_rounds_are_those_of_decoding(
    pair: str, settings: dict[str, float], method: Method
) -> None:
    base = tiny.trained(pair)
    decoder = type(base)(base.target, base.drafter)  # nothing learnt yet
    config = DecodeConfig(method=method, max_new_tokens=40).with_changes(budget=12, **settings)
    decoded = [
        len(e.accepted) - 1 for e in decoder.stream(PROMPT, config) if isinstance(e, RoundDone)
    ]
    known = record(decoder, decoder.encode(PROMPT), config)
    assert decoder.drafter is not None
    replayed = list(replay(known, decoder.drafter, config, Coupling(decoder.target.embed)))
    assert len(replayed) >= 3
    assert replayed == decoded[: len(replayed)]
    left = len(known.tokens) - known.answer - 1 - sum(replayed) - len(replayed)
    assert left <= decoder.drafter.spec.num_slots(), "a whole round was left out"

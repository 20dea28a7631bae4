"""Memory is predicted before a turn, refused where it is short, and bounded for long prompts."""

from __future__ import annotations

from typing import Any

import pytest

from dartree_core.config import DecodeConfig
from dartree_core.engine import Decoder
from dartree_core.engine.footprint import PREFILL_CHUNK, predict
from dartree_core.errors import CapacityError
from dartree_core.models import Target
from tests.core import tiny

PROMPT = [7, 100, 31, 8, 250]


def fresh(pair: str = "tied") -> Decoder:
    trained = tiny.trained(pair)
    return Decoder(trained.target, trained.drafter)


@pytest.mark.parametrize("length", [5, 300])
@pytest.mark.parametrize("pair", ["tied", "untied-shifted"])
def test_caches_stay_within_what_was_predicted(pair: str, length: int) -> None:
    decoder = fresh(pair)
    config = DecodeConfig(max_new_tokens=40).with_changes(budget=16)
    prompt = [(11 * i) % 256 for i in range(length)]
    found = predict(decoder.target, decoder.drafter, length, config)
    session = decoder.session()
    held = []
    for _ in decoder.stream(prompt, config, session=session):
        held.append(session.cache.nbytes)
    assert 0 < max(held) <= found.target_kv
    # A growing cache is two for a moment; nothing else is to spare.
    assert found.target_kv <= 3 * max(held)
    draft = session.draft_cache
    assert draft is not None
    parts = [part.untyped_storage() for kv in draft.context() for part in kv]
    kept = sum({part.data_ptr(): part.nbytes() for part in parts}.values())
    assert 0 < kept <= found.draft_kv


@pytest.mark.parametrize("method", ["ar", "ddtree", "dartree"])
def test_more_of_anything_needs_more(method: Any) -> None:
    decoder = fresh()
    config = DecodeConfig(method=method, max_new_tokens=100)

    def total(prompt: int = 40, **changes: Any) -> int:
        changed = config.with_changes(**changes)
        return predict(decoder.target, decoder.drafter, prompt, changed).total

    assert total() < total(prompt=300) < total(prompt=300, max_new_tokens=200)
    assert (total(budget=8) < total(budget=64)) == (method != "ar")
    assert total(method="ar") <= total()


def test_a_cache_that_is_large_enough_need_not_grow() -> None:
    decoder = fresh()
    config = DecodeConfig(max_new_tokens=8)
    session = decoder.session()
    decoder.generate([7] * 400, config, session=session)
    found = predict(decoder.target, decoder.drafter, 400, config, session)
    assert found.target_kv == session.cache.nbytes
    assert session.draft_cache is not None
    assert found.draft_kv == session.draft_cache.nbytes
    longer = predict(decoder.target, decoder.drafter, 4000, config, session)
    assert longer.target_kv > 4000 / session.cache.capacity * session.cache.nbytes


@pytest.mark.parametrize(("method", "nodes"), [("domino", 7), ("dartree", 7 * 3), ("ddtree", 400)])
def test_a_budget_counts_as_far_as_it_can_be_used(method: Any, nodes: int) -> None:
    decoder = fresh()
    assert decoder.drafter is not None
    assert decoder.drafter.spec.num_slots() == 7

    def workspace(budget: int) -> int:
        config = DecodeConfig(method=method).with_changes(budget=budget, width=3)
        return predict(decoder.target, decoder.drafter, 40, config).workspace

    assert workspace(400) == workspace(4000 if nodes < 400 else 400)
    if method != "domino":  # which has as many rows as its block, whatever the budget
        assert workspace(nodes - 1) < workspace(nodes)
        assert (workspace(nodes) == workspace(nodes + 1)) == (method == "dartree")


def test_a_turn_that_would_run_out_is_refused_before_it_runs() -> None:
    decoder = fresh()
    config = DecodeConfig(max_new_tokens=400)
    needed = predict(decoder.target, decoder.drafter, len(PROMPT), config).total
    decoder.free_bytes = lambda device: needed // 2
    with pytest.raises(CapacityError) as caught:
        decoder.stream(PROMPT, config)
    assert "5 tokens with up to 400 new ones needs about" in caught.value.message
    assert "only" in caught.value.message
    assert "cpu memory" in caught.value.message
    decoder.free_bytes = lambda device: 2 * needed
    assert len(decoder.generate(PROMPT, config.with_changes(max_new_tokens=4)).token_ids) == 4


@pytest.mark.parametrize(
    ("room", "remedy"),
    [
        ({"max_new_tokens": 50}, "--max-new-tokens, for example to 50"),
        ({"budget": 8}, "--budget 8"),
        ({"method": "ar"}, "--method ar"),
        (None, "Shorten the prompt"),
    ],
)
def test_the_remedy_is_the_mildest_that_helps(room: dict[str, Any] | None, remedy: str) -> None:
    decoder = fresh()
    assert decoder.drafter is not None
    config = DecodeConfig(max_new_tokens=200).with_changes(budget=64)
    prompt = [7] * 300

    def total(**changes: Any) -> int:
        changed = config.with_changes(**changes)
        return predict(decoder.target, decoder.drafter, len(prompt), changed).total

    remedies = ({"max_new_tokens": 50}, {"budget": 8}, {"method": "ar"})
    free = total(**room) if room else 1000
    mildest = next((r for r in remedies if total(**r) <= free), None)
    decoder.free_bytes = lambda device: int(free / 0.95) + 1
    with pytest.raises(CapacityError) as caught:
        decoder.stream(prompt, config)
    # Where a milder one frees as much it is named instead.
    assert (remedy in caught.value.remedy) == (mildest == room)
    assert room is not None or mildest is None


def test_an_unknown_amount_of_memory_refuses_nothing() -> None:
    decoder = fresh()
    decoder.free_bytes = lambda device: None
    assert decoder.generate(PROMPT, DecodeConfig(max_new_tokens=3)).token_ids


def test_memory_a_conversation_holds_is_not_asked_for_again() -> None:
    decoder = fresh()
    config = DecodeConfig(max_new_tokens=8)
    session = decoder.session()
    decoder.generate([7] * 400, config, session=session)
    needed = predict(decoder.target, decoder.drafter, 400, config).total
    short = needed - session.cache.nbytes // 2
    decoder.free_bytes = lambda device: short
    with pytest.raises(CapacityError):
        decoder.stream([7] * 400, config)
    decoder.generate([7] * 400, config, session=session)


def test_a_long_prompt_is_read_in_chunks_and_its_features_do_not_pile_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoder = fresh()
    passes: list[int] = []
    waiting: list[int] = []
    session = decoder.session()
    original = Target.forward if type(decoder.target) is Target else type(decoder.target).forward

    def forward(self: Any, tokens: Any, cache: Any, **options: Any) -> Any:
        passes.append(len(tokens))
        waiting.append(len(session.pending))
        return original(self, tokens, cache, **options)

    monkeypatch.setattr("dartree_core.engine.decoder.PREFILL_CHUNK", 64)
    monkeypatch.setattr(type(decoder.target), "forward", forward)
    prompt = [(13 * i) % 256 for i in range(300)]
    config = DecodeConfig(max_new_tokens=12)
    chunked = decoder.generate(prompt, config, session=session).token_ids
    assert passes[:5] == [64, 64, 64, 64, 44]
    assert max(waiting) <= 64
    monkeypatch.undo()
    assert len(prompt) < PREFILL_CHUNK
    assert chunked == decoder.generate(prompt, config).token_ids

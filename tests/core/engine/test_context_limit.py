"""At the edges of the target's context, and with settings at the edge of sense."""

from __future__ import annotations

from typing import Any

import pytest

from dartree_core.config import METHODS, DecodeConfig, TreeConfig
from dartree_core.engine import Decoder
from dartree_core.errors import CapacityError, ConfigError
from dartree_core.models import Target
from tests.core import tiny

MOST = 128


def prompt_of(length: int) -> list[int]:
    return [(7 * i + i * i) % tiny.VOCAB for i in range(length)]


@pytest.fixture
def positions_fed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Largest position of every target pass."""
    fed: list[int] = []
    original = Target.forward

    def forward(self: Target, tokens: Any, cache: Any, **options: Any) -> Any:
        positions = options.get("positions")
        last = cache.length + len(tokens) - 1 if positions is None else int(positions.max())
        fed.append(last)
        return original(self, tokens, cache, **options)

    monkeypatch.setattr(Target, "forward", forward)
    return fed


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("room", [1, 2, 3, 9])
def test_generation_reaches_the_last_position_and_stops(
    method: Any, room: int, positions_fed: list[int]
) -> None:
    decoder = tiny.family("llama")
    assert decoder.target.max_positions == MOST
    prompt = prompt_of(MOST - room)
    config = DecodeConfig(method=method, max_new_tokens=500)
    result = decoder.generate(prompt, config)
    assert (len(result.token_ids), result.reason) == (room, "length")
    assert result.token_ids == tiny.plain(decoder, prompt, config).token_ids
    assert max(positions_fed) < MOST


@pytest.mark.parametrize("method", METHODS)
def test_a_prompt_that_fills_the_context_is_refused(method: Any) -> None:
    decoder = tiny.family("llama")
    for length in (MOST, MOST + 1):
        with pytest.raises(CapacityError, match=f"has {length} tokens.*at most {MOST}"):
            decoder.stream(prompt_of(length), DecodeConfig(method=method))


def test_a_drafter_of_shorter_context_goes_on_beyond_it() -> None:
    """Absolute positions past the drafter's own table are computed, not refused."""
    target = tiny.target("llama")
    decoder = Decoder(target, tiny.drafter(target, max_position_embeddings=16))
    prompt = prompt_of(100)
    config = DecodeConfig(max_new_tokens=20)
    assert (
        decoder.generate(prompt, config).token_ids
        == tiny.plain(tiny.family("llama"), prompt, config).token_ids
    )


@pytest.mark.parametrize("method", tiny.DRAFTING)
def test_one_token_prompt(method: Any) -> None:
    decoder = tiny.family("gemma3-sliding")
    config = DecodeConfig(method=method, max_new_tokens=12)
    assert decoder.generate([3], config).token_ids == tiny.plain(decoder, [3], config).token_ids


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("prompt", "message"),
    [([], "empty"), ([5, tiny.VOCAB], "Token id 48"), ([-1, 5], "Token id -1")],
    ids=["empty", "beyond-the-vocabulary", "negative"],
)
def test_unusable_ids_are_refused_before_anything_runs(
    method: Any, prompt: list[int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        tiny.family("llama").stream(prompt, DecodeConfig(method=method))


def test_drafting_without_a_drafter_is_refused_by_name() -> None:
    decoder = Decoder(tiny.target("llama"))
    with pytest.raises(ConfigError, match="'ddtree' drafts, but no drafter"):
        decoder.stream(tiny.PROMPT, DecodeConfig(method="ddtree"))
    assert len(decoder.generate(tiny.PROMPT, DecodeConfig("ar", max_new_tokens=3)).token_ids) == 3


def test_block_longer_than_trained_is_refused() -> None:
    with pytest.raises(ConfigError, match="block_size 7 is larger than the 6"):
        tiny.family("llama").stream(tiny.PROMPT, DecodeConfig(tree=TreeConfig(block_size=7)))


@pytest.mark.parametrize("shift", [False, True], ids=["row-dropped", "shifted"])
@pytest.mark.parametrize("block", [2, 3, 6, None])
@pytest.mark.parametrize("method", tiny.DRAFTING)
def test_block_size_bounds_the_depth(method: Any, block: int | None, shift: bool) -> None:
    target = tiny.target("llama")
    draft = tiny.drafter(target, shift_label=shift)
    config = DecodeConfig(method=method, tree=TreeConfig(block_size=block), max_new_tokens=20)
    found = tiny.events(Decoder(target, draft), tiny.PROMPT, config)
    deepest = max(max(e.tree.depth) for e in tiny.rounds(found))
    slots = draft.spec.num_slots(block)
    assert slots == (block or 6) - (not shift)
    assert deepest <= slots
    if method != "ddtree":  # a best-first search may well stay shallow
        assert deepest == slots
    answer = tiny.plain(tiny.family("llama"), tiny.PROMPT, config).token_ids
    assert tiny.finish(found).token_ids == answer


@pytest.mark.parametrize("budget", [1, 2, 7, 64, 500])
@pytest.mark.parametrize("method", tiny.DRAFTING)
def test_no_round_verifies_more_than_it_says_it_may(method: Any, budget: int) -> None:
    """Chains have no tree to size: their budget is the block."""
    config = DecodeConfig(method=method, tree=TreeConfig(budget=budget), max_new_tokens=20)
    for e in tiny.rounds(tiny.events(tiny.family("llama"), tiny.PROMPT, config)):
        assert e.tree.num_verified <= e.budget
        if method in tiny.TREES:
            assert e.budget == budget

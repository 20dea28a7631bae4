"""The batched lean path against transformers' own, of the same weights."""

from __future__ import annotations

import pytest
import torch

from dartree_core.models import Target, load_target
from dartree_core.models.lean import LeanTarget
from dartree_core.train.generate import ModelRows, generate_batch
from dartree_core.train.lean_rows import LeanRows
from dartree_core.train.precision import autocast
from dartree_core.train.quick import answerer
from dartree_core.train.stream import keyed_generator
from tests.core.train.conftest import CHECKPOINTS

PROMPTS = [[9, 8, 7, 6], [9, 8], [9, 8, 7, 100, 200, 300, 400], [9, 8, 11]]


@pytest.fixture(scope="module")
def lean() -> LeanTarget:
    torch.set_num_threads(1)
    found = load_target(
        CHECKPOINTS / "target_tied", device=torch.device("cpu"), dtype=torch.float32, lean=True
    )
    assert isinstance(found, LeanTarget)
    return found


def both(target: Target, lean: LeanTarget) -> tuple[ModelRows, LeanRows]:
    return ModelRows(target, PROMPTS), LeanRows(lean, PROMPTS, 40)


@torch.inference_mode()
def test_logits_are_the_models(target: Target, lean: LeanTarget) -> None:
    theirs, ours = both(target, lean)
    logits = theirs.begin()
    torch.testing.assert_close(ours.begin(), logits, atol=1e-4, rtol=1e-4)
    for _ in range(20):
        tokens = logits.argmax(-1)
        logits = theirs.step(tokens)
        torch.testing.assert_close(ours.step(tokens), logits, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
@pytest.mark.parametrize("kept", [[0], [3], [1, 2], [0, 3], [1, 2, 3]])
def test_rows_that_stay_are_not_disturbed(
    target: Target, lean: LeanTarget, kept: list[int]
) -> None:
    theirs, ours = both(target, lean)
    tokens = theirs.begin().argmax(-1)
    ours.begin()
    theirs.step(tokens), ours.step(tokens)
    order = ours.keep(kept)
    assert sorted(order) == kept
    assert theirs.keep(kept) == kept
    for token in (5, 17):
        wanted = theirs.step(torch.full((len(kept),), token))
        found = ours.step(torch.full((len(kept),), token))
        back = torch.tensor([order.index(row) for row in kept])
        torch.testing.assert_close(found[back], wanted, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_prompts_are_read_in_several_passes(
    target: Target, lean: LeanTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dartree_core.train.lean_rows._AT_ONCE", 3)
    theirs, ours = both(target, lean)
    torch.testing.assert_close(ours.begin(), theirs.begin(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("ends", [frozenset[int](), frozenset(range(3, 60))])
def test_answers_are_the_same(target: Target, lean: LeanTarget, ends: frozenset[int]) -> None:
    wanted = generate_batch(target, PROMPTS, [0.0] * 4, 30, ends, keyed_generator(0))
    assert generate_batch(lean, PROMPTS, [0.0] * 4, 30, ends, keyed_generator(0)) == wanted


def test_one_token_prompts_can_be_answered(lean: LeanTarget) -> None:
    found = generate_batch(lean, [[5], [6]], [0.0] * 2, 4, frozenset(), keyed_generator(0))
    assert [len(answer) for answer in found] == [4, 4]


def test_bfloat16_products_lose_no_more_than_autocast_does(target: Target) -> None:
    again = load_target(
        CHECKPOINTS / "target_tied", device=torch.device("cpu"), dtype=torch.float32
    )
    model = LeanTarget(again.model, kernel="onednn-bf16")
    noise = keyed_generator(0)
    lengths = torch.randint(2, 30, (64,), generator=noise).tolist()
    prompts = [torch.randint(5, 500, (n,), generator=noise).tolist() for n in lengths]
    with torch.inference_mode():
        exact = ModelRows(target, prompts).begin()
        with autocast(target.device, torch.bfloat16):
            usual = ModelRows(target, prompts).begin()
        found = LeanRows(model, prompts, 8, torch.bfloat16).begin()
    lost, allowed = ((x - exact).pow(2).mean().sqrt() for x in (found, usual))
    assert 0 < lost < 1.5 * allowed


def test_an_answerer_is_lean_where_it_can_be() -> None:
    def load(name: str) -> Target:
        return load_target(CHECKPOINTS / name, device=torch.device("cpu"), dtype=torch.float32)

    assert isinstance(answerer(load("target_tied")), LeanTarget)

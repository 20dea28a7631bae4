"""The compiled backbone drafts what the lean one drafts."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from dartree_core import compiled
from dartree_core.draft import Drafter
from dartree_core.draft.dflash import DFlashBackbone
from dartree_core.draft.lean import MOST_NEW, LeanBackbone
from dartree_core.draft.rounding import DraftKernels
from dartree_core.models import kernels
from tests.core import tiny

ROOT = torch.tensor([7])
ROUNDED = ("panels-int8", "panels-bf16")
"""Kernels that round what they read."""


def features(count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 2 * tiny.HIDDEN, generator=generator)


def both(context: str = "panels-fp32", **options: Any) -> tuple[Drafter, Drafter]:
    """A lean drafter, and a compiled one of the same weights, `context` on such a kernel; where
    that rounds, the lean one's is, too."""
    if not compiled.shares():
        pytest.skip("compiled code cannot share PyTorch's threads here")
    device = torch.device("cpu")
    if context == "panels-int8" and context not in kernels.rounding(device):
        pytest.skip("this CPU has no 8-bit products")
    if context == "panels-bf16" and not kernels.has_bfloat16():
        pytest.skip("this CPU multiplies no bfloat16")
    first = tiny.drafter(tiny.target("llama"), **options)
    weights = first.backbone.state_dict()
    second = copy.copy(first)
    oracle = DraftKernels(context if context in ROUNDED else "dense")
    chosen = oracle, DraftKernels(context, "panels-fp32")
    for drafter, own in zip((first, second), chosen, strict=True):
        drafter.backbone = DFlashBackbone(drafter.spec).requires_grad_(False)
        drafter.backbone.load_state_dict(weights)
        drafter._lean = LeanBackbone(drafter.backbone, own)
    if context != "dense":
        table = second.vocabulary.select(second.target.output_weight)
        second._output = kernels.named("panels-fp32")(table, None)
    second.compile()
    assert second._lean is not None
    assert second._lean.compiled
    return first, second


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shift_label": True},
        {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4},
        {"context": "dense"},
        *({"context": kernel, "shift_label": True} for kernel in ROUNDED),
    ],
    ids=["plain", "shifted", "windows", "mixed", *ROUNDED],
)
def test_rounds_of_context_and_block_equal_the_lean_path(options: dict[str, Any]) -> None:
    pair = both(**options)
    caches = [drafter.new_cache() for drafter in pair]
    known = 0
    for step, new in enumerate((MOST_NEW + 9, 0, 1, 3, MOST_NEW, 2, 300, 1)):
        more = features(new, seed=step) if new else None
        blocks = []
        for drafter, cache in zip(pair, caches, strict=True):
            merged = more is not None and drafter.merges(more, cache)
            if more is not None and not merged:
                drafter.extend(more, cache)
            size = 3 if step == 5 else None
            blocks.append(drafter.draft(ROOT + step, cache, size, more if merged else None))
        known += new
        assert caches[0].length == caches[1].length == known
        torch.testing.assert_close(blocks[1].hidden, blocks[0].hidden, atol=2e-4, rtol=1e-4)
        torch.testing.assert_close(
            blocks[1].base_logits, blocks[0].base_logits, atol=1e-3, rtol=1e-3
        )
    for ours, theirs in zip(caches[1].context(), caches[0].context(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_a_block_is_the_callers() -> None:
    """The next pass writes where this one did, but not into what was given out."""
    _, drafter = both()
    cache = drafter.new_cache()
    first = drafter.draft(ROOT, cache, new=features(4))
    before = first.hidden.clone(), first.base_logits.clone()
    drafter.draft(ROOT + 5, cache, new=features(2, seed=3))
    assert torch.equal(first.hidden, before[0])
    assert torch.equal(first.base_logits, before[1])


def test_a_pass_that_fails_commits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    _, drafter = both()
    from dartree_core.compiled import pass_loops

    cache = drafter.new_cache()
    drafter.extend(features(5), cache)
    expected = drafter.draft(ROOT, cache, new=features(2, seed=1)).hidden

    def broken(*rest: Any) -> None:
        raise MemoryError

    cache.crop(5)
    with monkeypatch.context() as patch:
        patch.setattr(pass_loops, "run", broken)
        with pytest.raises(MemoryError):
            drafter.draft(ROOT, cache, new=features(2, seed=1))
    assert cache.length == 5
    assert torch.equal(drafter.draft(ROOT, cache, new=features(2, seed=1)).hidden, expected)


def test_only_float32_on_a_cpu_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others do not even wait for the compiler."""
    first, _ = both()
    first.backbone.to(torch.bfloat16)
    monkeypatch.setattr(compiled, "available", lambda: pytest.fail("asked for loops"))
    assert first._lean is not None
    first.compile()
    assert not first._lean.compiled


def test_other_kernels_keep_the_lean_path() -> None:
    first, _ = both()
    first.compile()
    assert first._lean is not None
    assert not first._lean.compiled

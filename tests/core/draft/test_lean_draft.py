"""The drafter's lean path computes what its general path computes."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from dartree_core.draft import Drafter
from dartree_core.draft.dflash import DFlashBackbone
from dartree_core.draft.lean import MOST_NEW, LeanBackbone, supports
from dartree_core.draft.rounding import DraftKernels
from dartree_core.models import kernels
from tests.core import tiny

ROOT = torch.tensor([7])
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "shifted": {"shift_label": True},
    "windows": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4},
    "windows-both-ways": {
        "layer_types": ["sliding_attention"] * 2,
        "sliding_window": 3,
        "is_causal": False,
    },
}


def features(count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 2 * tiny.HIDDEN, generator=generator)


@functools.cache
def both(kind: str) -> tuple[Drafter, Drafter]:
    """The general drafter, and a lean one of the same weights."""
    options = KINDS[kind]
    general, lean = (tiny.drafter(tiny.target("llama"), **options) for _ in range(2))
    backbone = DFlashBackbone(lean.spec).requires_grad_(False)
    backbone.load_state_dict(general.backbone.state_dict())
    lean.backbone = backbone
    lean._lean = LeanBackbone(backbone, DraftKernels())
    return general, lean


@pytest.mark.parametrize("kind", KINDS)
def test_rounds_of_context_and_block_equal_the_general_path(kind: str) -> None:
    general, lean = both(kind)
    caches = general.new_cache(), lean.new_cache()
    known = 0
    for new in (MOST_NEW + 9, 1, 3, 2, 6):
        more = features(new, seed=known)
        general.extend(more, caches[0])
        merged = lean.merges(more, caches[1])
        assert merged == (new <= MOST_NEW)
        if not merged:
            lean.extend(more, caches[1])
        known += new
        blocks = (
            general.draft(ROOT, caches[0]),
            lean.draft(ROOT, caches[1], new=more if merged else None),
        )
        torch.testing.assert_close(blocks[1].hidden, blocks[0].hidden, atol=2e-4, rtol=1e-4)
        torch.testing.assert_close(
            blocks[1].base_logits, blocks[0].base_logits, atol=1e-3, rtol=1e-3
        )
        assert caches[0].length == caches[1].length == known
    for ours, theirs in zip(caches[1].context(), caches[0].context(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_windows_matter_to_these_drafters() -> None:
    """Guards the test above: a mask that is ignored would go unnoticed without far context."""
    blocks = []
    for kind in ("plain", "windows", "windows-both-ways"):
        _, lean = both(kind)
        blocks.append(lean.draft(ROOT, lean.new_cache(), new=features(20)).hidden)
    assert not torch.allclose(blocks[0], blocks[1], atol=0.05)
    assert not torch.allclose(blocks[0], blocks[2], atol=0.05)


def test_a_pass_that_fails_commits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    _, lean = both("plain")
    cache = lean.new_cache()
    lean.extend(features(5), cache)
    expected = lean.draft(ROOT, cache, new=features(2, seed=1)).hidden
    cache.crop(5)
    backbone = lean.backbone
    with monkeypatch.context() as patch:
        patch.setattr(backbone.layers[1].mlp, "down_proj", None)
        patch.setattr(lean._lean._layers[1], "down", None)  # type: ignore[union-attr]
        with pytest.raises(TypeError):
            lean.draft(ROOT, cache, new=features(2, seed=1))
    assert cache.length == 5
    again = lean.draft(ROOT, cache, new=features(2, seed=1)).hidden
    assert torch.equal(again, expected)


def test_the_backbone_still_runs_on_parts_of_fused_products() -> None:
    """Static shapes go through it, whatever the kernels."""
    general, lean = both("plain")
    context = features(6)
    at = torch.arange(6)
    general.backbone.rope.reserve(6, at.device, torch.float32)
    lean.backbone.rope.reserve(6, at.device, torch.float32)
    with torch.inference_mode():
        ours = lean.backbone.context_keys_values(context, at)
        theirs = general.backbone.context_keys_values(context, at)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
    assert not [m for m in lean.backbone.modules() if isinstance(m, torch.nn.Linear)]


def test_drafters_with_convolutions_keep_the_general_path() -> None:
    from dataclasses import replace

    spec = both("plain")[0].spec
    assert supports(spec)
    assert not supports(replace(spec, conv_taps=3, conv_group=4))


@pytest.mark.parametrize(
    "kernel", kernels.candidates(torch.device("cpu"), torch.float32, torch.float32)
)
def test_modules_become_parts_of_one_product(kernel: str) -> None:
    parent = torch.nn.Module()
    parent.a = torch.nn.Linear(8, 4, bias=False)
    parent.b = torch.nn.Linear(8, 6, bias=False)
    x = torch.randn(3, 8)
    wanted = parent.a(x), parent.b(x)
    with torch.inference_mode():
        run = kernels.fuse(parent, ("a", "b"), kernel)
        torch.testing.assert_close(run(x), torch.cat(wanted, dim=-1))
        torch.testing.assert_close(parent.a(x), wanted[0])
        torch.testing.assert_close(parent.b(x), wanted[1])

"""Rotary tables against transformers' own, for every kind of scaling."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dartree_core.models.rope import Rope, rotate

KINDS: dict[str, dict[str, Any] | None] = {
    "default": None,
    "linear": {"rope_type": "linear", "factor": 4.0},
    "older-name": {"type": "linear", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}


def theirs(scaling: dict[str, Any] | None, positions: torch.Tensor) -> tuple[Any, Any]:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    scaling = dict(scaling or {})
    kind = scaling.pop("type", None) or scaling.pop("rope_type", "default")
    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        max_position_embeddings=256,
        rope_parameters={"rope_theta": 5e4, "rope_type": kind, **scaling},
    )
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), positions[None])
    return cos[0], sin[0]


def signed(sin: torch.Tensor) -> torch.Tensor:
    """Sines with the sign that `rotate` wants on them, and transformers puts on the vectors."""
    first, second = sin.chunk(2, dim=-1)
    return torch.cat((-first, second), dim=-1)


@pytest.mark.parametrize("kind", KINDS)
def test_factors_equal_transformers(kind: str) -> None:
    positions = torch.tensor([0, 1, 5, 63, 64, 200, 255])
    rope = Rope(16, 256, {"rope_theta": 5e4, "rope_scaling": KINDS[kind]})
    rope.reserve(256, positions.device, torch.float32)
    cos, sin = rope(positions)
    expected = theirs(KINDS[kind], positions)
    torch.testing.assert_close(cos[0], expected[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(sin[0], signed(expected[1]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"default"}))
def test_scaling_changes_something(kind: str) -> None:
    """Guards the test above."""
    positions = torch.arange(256)
    assert not torch.allclose(theirs(KINDS[kind], positions)[0], theirs(None, positions)[0])


def test_rotation_equals_transformers() -> None:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    x = torch.randn(1, 3, 5, 16)
    cos, sin = theirs(None, torch.arange(5))
    expected, _ = apply_rotary_pos_emb(x, x, cos[None], sin[None])
    torch.testing.assert_close(rotate(x, cos[None, None], signed(sin)[None, None]), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_casting_the_module_does_not_round_the_frequencies(dtype: torch.dtype) -> None:
    positions = torch.tensor([100, 4000, 30000])
    exact = Rope(16, 32768, {"rope_theta": 1e6})
    cast = Rope(16, 32768, {"rope_theta": 1e6}).to(dtype)
    for rope, kind in ((exact, torch.float32), (cast, dtype)):
        rope.reserve(30001, positions.device, kind)
    for ours, true in zip(cast(positions), exact(positions), strict=True):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours.float(), true, atol=0.01, rtol=0)


def test_tables_grow_and_follow_the_dtype() -> None:
    rope = Rope(16, 64, {"rope_theta": 1e4})
    cpu = torch.device("cpu")
    rope.reserve(10, cpu, torch.float32)
    early = rope(torch.tensor([9]))[0]
    rope.reserve(3000, cpu, torch.float32)
    assert torch.equal(rope(torch.tensor([9]))[0], early)
    assert rope(torch.tensor([2999]))[0].isfinite().all()
    rope.reserve(10, cpu, torch.bfloat16)
    assert rope(torch.tensor([9]))[0].dtype == torch.bfloat16

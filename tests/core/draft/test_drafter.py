"""The drafter: committed context only, absolute positions, windows, the borrowed tables."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dartree_core.draft import Drafter
from dartree_core.draft.drafter import DraftCache
from dartree_core.errors import ConfigError
from tests.core import tiny

ROOT = torch.tensor([7])


def features(count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 2 * tiny.HIDDEN, generator=generator)


def with_context(draft: Drafter, *chunks: torch.Tensor) -> DraftCache:
    cache = draft.new_cache()
    for chunk in chunks:
        draft.extend(chunk, cache)
    return cache


def plain_backbone(draft: Drafter, context: torch.Tensor, root: int, size: int) -> torch.Tensor:
    """The block pass, written down once more with explicit masks and no cache."""
    spec, net = draft.spec, draft.backbone
    tokens = torch.tensor([root] + [spec.mask_token_id] * (size - 1))
    x = draft.target.embed(tokens)
    c = net.hidden_norm(net.fc(context))
    t, n = len(context), len(tokens)
    positions = torch.arange(t + n)
    half = spec.head_dim // 2
    inverse = spec.rope["rope_theta"] ** (-torch.arange(half).double() / half)
    angle = positions[:, None].double() * inverse
    cos, sin = angle.cos().float().repeat(1, 2), angle.sin().float().repeat(1, 2)

    def turned(v: torch.Tensor, at: slice) -> torch.Tensor:
        swapped = torch.cat((-v[..., half:], v[..., :half]), -1)
        return v * cos[at, None] + swapped * sin[at, None]

    def mixed(v: torch.Tensor, conv: Any, side: int, source: torch.Tensor) -> torch.Tensor:
        """A convolution's one side, row by row, tap by tap."""
        if conv is None:
            return v
        shape = (len(v), 2, spec.conv_taps, -1)
        dynamic = conv.kernel_projection(source).view(shape)[:, side]
        rows = []
        for i in range(len(v)):
            row = torch.zeros(v.shape[1])
            for tap in range(min(spec.conv_taps, i + 1)):
                own = dynamic[i, tap].repeat_interleave(spec.conv_group)
                row = row + (conv.base_kernel[side, tap] + own) * v[i - tap]
            rows.append(row)
        return torch.stack(rows)

    for layer, window, causal in zip(net.layers, spec.windows, spec.causal, strict=True):
        attention: Any = layer.self_attn
        source = layer.input_layernorm(x)
        h = mixed(source, layer.attention_conv, 0, source)
        heads = (-1, spec.num_heads, spec.head_dim)
        groups = (-1, spec.num_kv_heads, spec.head_dim)
        q = turned(attention.q_norm(attention.q_proj(h).view(heads)), slice(t, None))
        both = torch.cat((c, h))
        k = turned(attention.k_norm(attention.k_proj(both).view(groups)), slice(None))
        v = attention.v_proj(both).view(groups)
        share = spec.num_heads // spec.num_kv_heads
        k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / spec.head_dim**0.5
        if window is not None:
            far = (positions[t:, None] - positions[None]).abs() >= window
            scores = scores.masked_fill(far, float("-inf"))
        if causal:
            later = positions[t:, None] < positions[None]
            scores = scores.masked_fill(later, float("-inf"))
        out = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)
        x = x + mixed(attention.o_proj(out.flatten(1)), layer.attention_conv, 1, source)
        source = layer.post_attention_layernorm(x)
        inside = layer.mlp(mixed(source, layer.mlp_conv, 0, source))
        x = x + mixed(inside, layer.mlp_conv, 1, source)
    return net.norm(x)


@pytest.mark.parametrize("shift", [False, True], ids=["row-dropped", "shifted"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4},
        {
            "layer_types": ["full_attention", "sliding_attention"],
            "sliding_window": 4,
            "is_causal": False,
        },
        {"is_causal": True},
        {"conv_kernel_size": 3, "conv_group_size": 8},
    ],
    ids=str,
)
def test_block_equals_an_uncached_pass(fields: dict[str, Any], shift: bool) -> None:
    draft = tiny.drafter(tiny.target("llama"), shift_label=shift, **fields)
    context = features(9)
    block = draft.draft(ROOT, with_context(draft, context))
    with torch.inference_mode():
        expected = plain_backbone(draft, context, 7, 6)
    expected = expected if shift else expected[1:]
    torch.testing.assert_close(block.hidden, expected, atol=1e-4, rtol=1e-4)
    base = expected @ draft.target.output_weight.T
    torch.testing.assert_close(block.base_logits, base, atol=1e-3, rtol=1e-4)
    assert block.num_slots == draft.spec.num_slots()


def test_windows_matter_to_this_drafter() -> None:
    """Guards the test above."""
    blocks = []
    for window in (4, 400):
        draft = tiny.drafter(
            tiny.target("llama"), layer_types=["sliding_attention"] * 2, sliding_window=window
        )
        blocks.append(draft.draft(ROOT, with_context(draft, features(9))).hidden)
    assert not torch.allclose(*blocks, atol=0.05)


def hidden_with(**fields: Any) -> torch.Tensor:
    draft = tiny.drafter(tiny.target("llama"), **fields)
    return draft.draft(ROOT, with_context(draft, features(9))).hidden


def test_direction_matters_to_this_drafter() -> None:
    """Guards the test above: it could not tell otherwise."""
    slides = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 4}
    backwards, both = hidden_with(**slides), hidden_with(**slides, is_causal=False)
    assert not torch.allclose(backwards, both, atol=0.05)


def test_a_causal_block_does_not_look_ahead() -> None:
    """Slots of a shorter block are those of a longer one."""
    draft = tiny.drafter(tiny.target("llama"), is_causal=True)
    cache = with_context(draft, features(9))
    long, short = draft.draft(ROOT, cache), draft.draft(ROOT, cache, 3)
    torch.testing.assert_close(short.hidden, long.hidden[:2], atol=1e-5, rtol=1e-5)


def test_logits_are_scaled_then_bounded() -> None:
    plain = tiny.drafter(tiny.target("llama"))
    bounded = tiny.drafter(tiny.target("llama"), output_multiplier=0.5, final_logit_softcapping=2.0)
    raw, ours = (d.draft(ROOT, with_context(d, features(4))).base_logits for d in (plain, bounded))
    torch.testing.assert_close(ours, 2.0 * torch.tanh(0.5 * raw / 2.0))
    assert ours.abs().max() <= 2.0


def test_embeddings_may_be_scaled() -> None:
    target = tiny.target("gemma3-sliding")
    tokens = torch.tensor([3, 9])
    as_target = tiny.drafter(target)._embed(tokens)
    raw = tiny.drafter(target, input_embedding_scale=1.0)._embed(tokens)
    assert torch.equal(as_target, target.embed(tokens))
    assert torch.equal(raw, target.embedding.weight[tokens])
    assert not torch.allclose(as_target, raw), "this target scales its embeddings"


def test_context_may_come_in_pieces() -> None:
    draft = tiny.drafter(tiny.target("llama"))
    f = features(11)
    whole = draft.draft(ROOT, with_context(draft, f))
    parts = draft.draft(ROOT, with_context(draft, f[:4], f[4:5], f[5:]))
    torch.testing.assert_close(parts.hidden, whole.hidden, atol=1e-5, rtol=1e-5)


def test_blocks_leave_nothing_in_the_cache() -> None:
    draft = tiny.drafter(tiny.target("llama"))
    cache = with_context(draft, features(6))
    first = draft.draft(ROOT, cache)
    assert cache.length == 6
    draft.draft(torch.tensor([2]), cache)
    assert torch.equal(draft.draft(ROOT, cache).hidden, first.hidden)


def test_cropping_forgets_and_can_be_extended_again() -> None:
    draft = tiny.drafter(tiny.target("llama"))
    cache = with_context(draft, features(9))
    cache.crop(4)
    other = features(3, seed=5)
    draft.extend(other, cache)
    fresh = with_context(draft, features(9)[:4], other)
    assert torch.equal(draft.draft(ROOT, cache).hidden, draft.draft(ROOT, fresh).hidden)
    cache.crop(99)
    assert cache.length == 7


def test_growth_beyond_the_first_allocation_keeps_the_context() -> None:
    draft = tiny.drafter(tiny.target("llama"))
    f = features(700)
    steps = [f[i : i + 7] for i in range(0, 700, 7)]
    torch.testing.assert_close(
        draft.draft(ROOT, with_context(draft, *steps)).hidden,
        draft.draft(ROOT, with_context(draft, f)).hidden,
        atol=1e-4,
        rtol=1e-4,
    )


def test_a_smaller_block_looks_less_far() -> None:
    draft = tiny.drafter(tiny.target("llama"))
    cache = with_context(draft, features(6))
    assert draft.draft(ROOT, cache, 3).num_slots == 2
    assert draft.block_size(None) == 6
    with pytest.raises(ConfigError, match="block_size 7 is larger than the 6"):
        draft.draft(ROOT, cache, 7)


def test_positions_are_exact_in_half_precision() -> None:
    """Casting a drafter must not round its rotary frequencies: far out, every angle is off."""
    draft = tiny.drafter(tiny.target("llama"))
    draft.backbone.to(torch.bfloat16)
    positions = torch.tensor([[1, 100, 3000]])
    draft.backbone.rope.reserve(3001, positions.device, torch.bfloat16)
    cos, _ = draft.backbone.rope(positions)
    inverse = 10000.0 ** (-torch.arange(4).double() / 4)
    exact = (positions[0][:, None].double() * inverse).cos().repeat(1, 2)
    torch.testing.assert_close(cos[0, 0].double(), exact, atol=0.01, rtol=0)

"""The backbone with nothing between the products, for decoding on a CPU.

The same function as `DFlashBackbone`, of the same weights, in one pass a round: rows of context
that were committed since the last block are encoded beside the block, so that every weight is
read once, keys and values are written where they stay, and heads that share them become rows of
one attention problem. `DFlashBackbone` stays the general path, and the oracle in tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dartree_core.draft.cache import DraftCache
from dartree_core.draft.dflash import DFlashBackbone, DraftLayer, RMSNorm
from dartree_core.draft.rounding import DraftKernels
from dartree_core.draft.spec import DraftSpec
from dartree_core.models import kernels
from dartree_core.models.arithmetic import rms_norm
from dartree_core.models.kernels import Linear
from dartree_core.models.rope import rotate

MOST_NEW = 48
"""New context rows that a block's pass takes along; more, as after a prompt, go first."""


def supports(spec: DraftSpec) -> bool:
    """True when this path computes the function of drafters like `spec`."""
    return not spec.conv_taps


@dataclass(slots=True)
class _Layer:
    attention_norm: RMSNorm
    q: nn.Module
    kv: Linear
    q_norm: RMSNorm
    k_norm: RMSNorm
    out: nn.Module
    mlp_norm: RMSNorm
    gate_up: Linear
    down: nn.Module


class LeanBackbone:
    """One pass over new context and a block.

    Args:
        backbone: Its linear modules are handed to kernels: it still runs, but its weights
            cannot be read any more.
        chosen: Those kernels.
    """

    def __init__(self, backbone: DFlashBackbone, chosen: DraftKernels) -> None:
        self._backbone = backbone
        self._spec = backbone.spec
        self._layers = [self._take(layer, chosen.block) for layer in backbone.layers]
        kernels.pack(backbone.layers, chosen.block)
        kernels.pack(backbone, chosen.context)
        for lean, layer in zip(self._layers, backbone.layers, strict=True):
            assert isinstance(layer, DraftLayer)
            lean.q, lean.out = layer.self_attn.q_proj, layer.self_attn.o_proj
            lean.down = layer.mlp.down_proj

    def _take(self, layer: nn.Module, kernel: str) -> _Layer:
        assert isinstance(layer, DraftLayer)
        attention, mlp = layer.self_attn, layer.mlp
        return _Layer(
            attention_norm=layer.input_layernorm,
            q=attention.q_proj,
            kv=kernels.fuse(attention, ("k_proj", "v_proj"), kernel),
            q_norm=attention.q_norm,
            k_norm=attention.k_norm,
            out=attention.o_proj,
            mlp_norm=layer.post_attention_layernorm,
            gate_up=kernels.fuse(mlp, ("gate_proj", "up_proj"), kernel),
            down=mlp.down_proj,
        )

    def extend(self, features: Tensor, cache: DraftCache) -> None:
        """Commit context features `[t, layers * H]` of the next `t` positions."""
        context = self._encode(features)
        cos, sin = self._factors(cache.length, len(context))
        for i, layer in enumerate(self._layers):
            cache.place(i, *self._keys_values(layer, context, cos, sin))
        cache.length += len(context)

    def __call__(
        self,
        x: Tensor,
        cache: DraftCache,
        features: Tensor | None = None,
        masks: Sequence[Tensor | None] | None = None,
    ) -> Tensor:
        """Commit context, and draft behind it.

        Args:
            x: `[n, H]`, embeddings of `[root, mask, ...]`.
            cache: Committed context; the new positions are added once the pass is complete.
            features: `[t, layers * H]` of the next `t` positions, the root's follow; or None.
            masks: Per layer bool `[n, length + t + n]`, or None for no mask, there or anywhere.

        Returns:
            Final-normed hidden states `[n, H]`.
        """
        context = x[:0] if features is None else self._encode(features)
        new, n = len(context), len(x)
        cos, sin = self._factors(cache.length, new + n)
        for i, layer in enumerate(self._layers):
            h = _normed(layer.attention_norm, x)
            rows = torch.cat((context, h)) if new else h
            keys, values = cache.place(i, *self._keys_values(layer, rows, cos, sin))
            q = rotate(_normed(layer.q_norm, self._heads(layer.q(h))), cos[new:], sin[new:])
            mask = masks[i] if masks else None
            x = x + layer.out(self._attend(q, keys, values, mask))
            gate, up = layer.gate_up(_normed(layer.mlp_norm, x)).chunk(2, dim=-1)
            x = x + layer.down(F.silu(gate) * up)
        cache.length += new
        return _normed(self._backbone.norm, x)

    def _encode(self, features: Tensor) -> Tensor:
        """As `DFlashBackbone.encode_context`."""
        return _normed(self._backbone.hidden_norm, self._backbone.fc(features))

    def _factors(self, start: int, count: int) -> tuple[Tensor, Tensor]:
        """Rotary factors of `count` positions from `start`, as views of the tables."""
        rope = self._backbone.rope
        return rope.cos[start : start + count], rope.sin[start : start + count]

    def _heads(self, x: Tensor) -> Tensor:
        """`[n, heads * D]` to `[heads, n, D]`."""
        return x.view(len(x), -1, self._spec.head_dim).transpose(0, 1)

    def _keys_values(
        self, layer: _Layer, rows: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor]:
        k, v = self._heads(layer.kv(rows)).chunk(2)
        return rotate(_normed(layer.k_norm, k), cos, sin), v

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """`[heads, n, D]` queries to `[n, heads * D]`."""
        heads, n, dim = q.shape
        groups = len(keys)
        if mask is not None:
            mask = mask.repeat(heads // groups, 1)
        # Query heads that share a key head become rows of one attention problem.
        out = F.scaled_dot_product_attention(
            q.reshape(1, groups, -1, dim), keys[None], values[None], attn_mask=mask
        )
        return out.view(heads, n, dim).transpose(0, 1).reshape(n, heads * dim)


def _normed(norm: RMSNorm, x: Tensor) -> Tensor:
    return rms_norm(x, norm.weight, norm.eps)

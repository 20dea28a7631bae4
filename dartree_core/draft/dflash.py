"""The DFlash backbone: a block of future tokens in one bidirectional pass (arXiv 2602.06036).

Queries come from the block `[root, mask, mask, ...]` only. Keys and values are the context, made
from the target's hidden states at committed positions and cached, followed by the block's own.
Module names are those of the public checkpoints, so that a state dict loads and saves unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dartree_core.draft.convolution import DynamicConvolution, convolved
from dartree_core.draft.spec import DraftSpec
from dartree_core.models.rope import Rope, rotate


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Same shape and dtype as `x`."""
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class DraftAttention(nn.Module):
    """Attention of block rows over the cached context and the block itself."""

    def __init__(self, spec: DraftSpec, window: int | None) -> None:
        super().__init__()
        h, d = spec.hidden_size, spec.head_dim
        self.head_dim, self.window = d, window
        self.q_proj = nn.Linear(h, spec.num_heads * d, bias=False)
        self.k_proj = nn.Linear(h, spec.num_kv_heads * d, bias=False)
        self.v_proj = nn.Linear(h, spec.num_kv_heads * d, bias=False)
        self.o_proj = nn.Linear(spec.num_heads * d, h, bias=False)
        self.q_norm = RMSNorm(d, spec.rms_eps)
        self.k_norm = RMSNorm(d, spec.rms_eps)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.head_dim).transpose(-3, -2)

    def keys_values(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Rotated keys and values of `x` `[..., n, H]`, each `[..., kv_heads, n, head_dim]`."""
        k = rotate(self.k_norm(self._heads(self.k_proj(x))), cos, sin)
        return k, self._heads(self.v_proj(x))

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        context: tuple[Tensor, Tensor],
        mask: Tensor | None = None,
    ) -> Tensor:
        """Attend from block rows.

        Args:
            x: `[..., n, H]` normed block rows.
            cos, sin: Rotary factors of the rows' absolute positions, `[..., n, head_dim]`.
            context: Cached keys and values, `[..., kv_heads, t, head_dim]`.
            mask: Boolean `[..., n, t + n]`, True where a row may look; None for everywhere.
        """
        q = rotate(self.q_norm(self._heads(self.q_proj(x))), cos, sin)
        k, v = self.keys_values(x, cos, sin)
        k = torch.cat((context[0], k), dim=-2)
        v = torch.cat((context[1], v), dim=-2)
        if mask is not None:
            mask = mask.unsqueeze(-3)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        projected: Tensor = self.o_proj(out.transpose(-3, -2).flatten(-2))
        return projected


class DraftMLP(nn.Module):
    """SwiGLU feed-forward."""

    def __init__(self, spec: DraftSpec) -> None:
        super().__init__()
        h, m = spec.hidden_size, spec.intermediate_size
        self.gate_proj = nn.Linear(h, m, bias=False)
        self.up_proj = nn.Linear(h, m, bias=False)
        self.down_proj = nn.Linear(m, h, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x`."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class DraftLayer(nn.Module):
    """One pre-norm decoder layer of the backbone."""

    def __init__(self, spec: DraftSpec, window: int | None) -> None:
        super().__init__()
        self.self_attn = DraftAttention(spec, window)
        self.mlp = DraftMLP(spec)
        self.input_layernorm = RMSNorm(spec.hidden_size, spec.rms_eps)
        self.post_attention_layernorm = RMSNorm(spec.hidden_size, spec.rms_eps)
        self.attention_conv = DynamicConvolution.of(spec)
        self.mlp_conv = DynamicConvolution.of(spec)

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        context: tuple[Tensor, Tensor],
        mask: Tensor | None = None,
    ) -> Tensor:
        """Block rows `[..., n, H]` in, block rows out; arguments as in `DraftAttention`."""
        x = x + convolved(
            self.attention_conv,
            self.input_layernorm(x),
            lambda y: self.self_attn(y, cos, sin, context, mask),
        )
        return x + convolved(self.mlp_conv, self.post_attention_layernorm(x), self.mlp)


class DFlashBackbone(nn.Module):
    """Everything of a DFlash drafter that is not borrowed from the target or a head."""

    def __init__(self, spec: DraftSpec) -> None:
        super().__init__()
        self.spec = spec
        width = len(spec.target_layer_ids) * spec.hidden_size
        self.fc = nn.Linear(width, spec.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(spec.hidden_size, spec.rms_eps)
        self.layers = nn.ModuleList(DraftLayer(spec, w) for w in spec.windows)
        self.norm = RMSNorm(spec.hidden_size, spec.rms_eps)
        self.rope = Rope(spec.head_dim, spec.max_positions, spec.rope)

    def encode_context(self, features: Tensor) -> Tensor:
        """Context features `[..., t, layers * H]` to the vectors keys and values are made of."""
        out: Tensor = self.hidden_norm(self.fc(features))
        return out

    def context_keys_values(
        self, features: Tensor, positions: Tensor
    ) -> list[tuple[Tensor, Tensor]]:
        """Per layer the keys and values of features `[..., t, layers * H]` at `positions`."""
        c = self.encode_context(features)
        cos, sin = self.rope(positions)
        return [attention.keys_values(c, cos, sin) for attention in self._attentions()]

    def _attentions(self) -> Iterator[DraftAttention]:
        for layer in self.layers:
            assert isinstance(layer, DraftLayer)
            yield layer.self_attn

    def forward(
        self,
        embeddings: Tensor,
        positions: Tensor,
        context: list[tuple[Tensor, Tensor]],
        masks: list[Tensor | None] | None = None,
    ) -> Tensor:
        """One pass over blocks.

        Args:
            embeddings: `[..., n, H]`, the target's embeddings of `[root, mask, ...]`.
            positions: `[..., n]` absolute positions.
            context: Per layer cached keys and values.
            masks: Per layer a boolean mask as in `DraftAttention`, or None for no mask anywhere.

        Returns:
            Final-normed hidden states `[..., n, H]`.
        """
        cos, sin = self.rope(positions)
        x = embeddings
        for i, layer in enumerate(self.layers):
            x = layer(x, cos, sin, context[i], masks[i] if masks else None)
        out: Tensor = self.norm(x)
        return out

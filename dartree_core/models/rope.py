"""Rotary position embedding tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


class Rope(nn.Module):
    """Cosine and sine tables, grown on demand, for absolute positions.

    Frequencies, and any scaling (llama3, yarn, linear, ...), come from transformers' own
    initialisers, so a checkpoint's `rope_scaling` means here what it means there.
    """

    def __init__(self, head_dim: int, max_positions: int, parameters: Mapping[str, Any]) -> None:
        super().__init__()
        # Plain attributes, not buffers: casting the module to bfloat16 must not round the
        # frequencies, or angles are off by whole turns a few hundred positions in.
        self.inverse, self.scale = _frequencies(head_dim, max_positions, parameters)
        self.cos = torch.empty(0, head_dim)
        self.sin = torch.empty(0, head_dim)
        self._device_key: tuple[torch.device, torch.dtype] | None = None

    def reserve(self, length: int, device: torch.device, dtype: torch.dtype) -> None:
        """Make the tables cover positions `[0, length)`."""
        if len(self.cos) >= length and self._device_key == (device, dtype):
            return
        length = max(256, length, 2 * len(self.cos))
        self.cos, self.sin = tables(self.inverse.to(device), length, self.scale, dtype)
        self._device_key = (device, dtype)

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Factors `[..., 1, n, head_dim]` for positions `[..., n]`, to broadcast over heads."""
        return self.cos[positions].unsqueeze(-3), self.sin[positions].unsqueeze(-3)


def tables(inverse: Tensor, length: int, scale: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rotary factors `[length, head_dim]` of positions from 0 on, on the frequencies' device.

    Sines carry the sign that `rotate` needs: the first half of each row is negated here, once,
    and not half of every vector in every layer.

    Args:
        inverse: float32 `[head_dim / 2]`, angle per position.
        length: Positions.
        scale: Of all factors.
        dtype: Of the tables; angles are float32 whatever it is.
    """
    inverse = inverse.float()
    angle = torch.outer(torch.arange(length, device=inverse.device).float(), inverse)
    cos, sin = angle.cos() * scale, angle.sin() * scale
    return torch.cat((cos, cos), dim=-1).to(dtype), torch.cat((-sin, sin), dim=-1).to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn `[..., heads, n, head_dim]` (halves layout, as in Llama) by factors of `tables`."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def _frequencies(
    head_dim: int, max_positions: int, parameters: Mapping[str, Any]
) -> tuple[Tensor, float]:
    from transformers.models.qwen3 import Qwen3Config
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

    scaling = dict(parameters.get("rope_scaling") or {})
    kind = scaling.pop("rope_type", scaling.pop("type", "default"))
    scaling.pop("type", None)
    config = Qwen3Config(
        head_dim=head_dim,
        hidden_size=head_dim,
        num_attention_heads=1,
        max_position_embeddings=max_positions,
        rope_parameters={
            **scaling,
            "rope_type": kind,
            "rope_theta": float(parameters["rope_theta"]),
        },
    )
    table = Qwen3RotaryEmbedding(config)
    # A copy: the table's own tensor may be an `nn.Buffer`, which registers itself where assigned.
    return table.inv_freq.clone(), float(table.attention_scaling)

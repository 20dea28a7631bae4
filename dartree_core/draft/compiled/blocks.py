"""The lean backbone with compiled loops between its products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dartree_core.draft.cache import DraftCache
from dartree_core.draft.compiled import loops
from dartree_core.draft.compiled.arrays import Array, array
from dartree_core.draft.lean import MOST_NEW, LeanBackbone
from dartree_core.draft.spec import DraftSpec


@dataclass(slots=True)
class _Room:
    """What a pass over blocks of one size writes to, float32.

    Attributes:
        rows: `[MOST_NEW + n, H]`, what attention reads: new context, then the block's norms.
        queries: `[kv_heads, heads / kv_heads * n, D]`.
        mixed: `[n, heads * D]`, what attention gives.
        normed: `[n, H]`, what the gates read.
        gated: `[n, M]`.
        nothing: `[n, H]`, zeros.
    """

    rows: Tensor
    queries: Tensor
    mixed: Tensor
    normed: Tensor
    gated: Tensor
    nothing: Array

    @classmethod
    def of(cls, spec: DraftSpec, n: int) -> _Room:
        heads, groups, width = spec.num_heads, spec.num_kv_heads, spec.head_dim
        return cls(
            rows=torch.empty(MOST_NEW + n, spec.hidden_size),
            queries=torch.empty(groups, heads // groups * n, width),
            mixed=torch.empty(n, heads * width),
            normed=torch.empty(n, spec.hidden_size),
            gated=torch.empty(n, spec.intermediate_size),
            nothing=np.zeros((n, spec.hidden_size), np.float32),
        )


def supports(lean: LeanBackbone) -> bool:
    """True for backbones of float32 rows on a CPU."""
    weight = lean.backbone.norm.weight
    return weight.device.type == "cpu" and weight.dtype == torch.float32


class CompiledBackbone:
    """`LeanBackbone` for blocks of float32 rows on a CPU; blocks with masks take its own way.

    Args:
        lean: The backbone whose products this one runs.
    """

    def __init__(self, lean: LeanBackbone) -> None:
        self._lean = lean
        self._eps = np.float32(lean.spec.rms_eps)
        self._gains = [array(layer.head_norm.squeeze(1)) for layer in lean.layers]
        self._mlp_norms = [array(layer.mlp_norm.weight) for layer in lean.layers]
        # The norm that a layer's end leads to: the next layer's, or the last of all.
        norms = [*(layer.attention_norm for layer in lean.layers), lean.backbone.norm]
        self._norms = [array(norm.weight) for norm in norms]
        self._rooms: dict[int, _Room] = {}

    def extend(self, features: Tensor, cache: DraftCache) -> None:
        """As `LeanBackbone.extend`."""
        self._lean.extend(features, cache)

    def __call__(
        self,
        x: Tensor,
        cache: DraftCache,
        features: Tensor | None = None,
        masks: Sequence[Tensor | None] | None = None,
    ) -> Tensor:
        """As `LeanBackbone`; `x` is written over."""
        lean = self._lean
        if masks:
            return lean(x, cache, features, masks)
        n = len(x)
        room = self._rooms.get(n)
        if room is None:
            room = self._rooms[n] = _Room.of(lean.spec, n)
        new = 0 if features is None else len(features)
        rows, end = room.rows[: new + n], cache.length + new + n
        stream, block = x.numpy(), room.rows.numpy()[new : new + n]
        if features is not None:
            rows[:new] = lean.encode(features)
        loops.add_norm(stream, room.nothing, self._norms[0], self._eps, block)
        cos, sin = (factor.numpy() for factor in lean.factors(cache.length, new + n))
        for i, layer in enumerate(lean.layers):
            qkv = layer.qkv(rows)
            keys, values = cache.room(i, room.queries, end)
            loops.heads(
                qkv.numpy(),
                self._gains[i],
                self._eps,
                cos,
                sin,
                new,
                room.queries.numpy(),
                keys.numpy(),
                values.numpy(),
                cache.length,
            )
            attended = F.scaled_dot_product_attention(
                room.queries[None], keys[None, :, :end], values[None, :, :end]
            )
            loops.by_row(attended[0].contiguous().numpy(), room.mixed.numpy())
            delta = layer.out(room.mixed).numpy()
            loops.add_norm(stream, delta, self._mlp_norms[i], self._eps, room.normed.numpy())
            loops.gated(layer.gate_up(room.normed).numpy(), room.gated.numpy())
            delta = layer.down(room.gated).numpy()
            loops.add_norm(stream, delta, self._norms[i + 1], self._eps, block)
        cache.length += new
        return rows[new:].clone()

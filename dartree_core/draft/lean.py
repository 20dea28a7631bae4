"""The backbone with nothing between the products, for decoding on a CPU.

The same function as `DFlashBackbone`, of the same weights, in one pass a round: rows of context
that were committed since the last block are encoded beside the block, so that every weight is
read once, keys and values are written where they stay, and heads that share them become rows of
one attention problem. `DFlashBackbone` stays the general path, and the oracle in tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dartree_core.compiled.arrays import array
from dartree_core.draft.cache import DraftCache
from dartree_core.draft.dflash import DFlashBackbone, DraftLayer, RMSNorm
from dartree_core.draft.rounding import DraftKernels
from dartree_core.draft.spec import DraftSpec
from dartree_core.models import kernels
from dartree_core.models.arithmetic import rms_norm
from dartree_core.models.kernels import Linear, panels
from dartree_core.models.rope import rotate

if TYPE_CHECKING:
    from dartree_core.compiled.passes import CompiledPass

MOST_NEW = 48
"""New context rows that a block's pass takes along; more, as after a prompt, go first."""


def supports(spec: DraftSpec) -> bool:
    """True when this path computes the function of drafters like `spec`."""
    return not spec.conv_taps


@dataclass(slots=True)
class _Layer:
    """What a layer's pass needs.

    Attributes:
        qkv: Queries, keys and values of all heads in one product.
        head_norm: Weights `[heads + kv_heads, 1, head_dim]` of the norms of queries and keys.
    """

    attention_norm: RMSNorm
    qkv: Linear
    head_norm: Tensor
    out: Linear
    mlp_norm: RMSNorm
    gate_up: Linear
    down: Linear


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
            out, down = layer.self_attn.o_proj, layer.mlp.down_proj
            assert isinstance(out, kernels.Packed)
            assert isinstance(down, kernels.Packed)
            lean.out, lean.down = out.run, down.run
        self._block = chosen.block
        self._rope = backbone.rope
        self._pass: CompiledPass | None = None
        self._like = torch.empty(backbone.spec.num_kv_heads, 0, backbone.spec.head_dim)
        self._everything: dict[int, Tensor] = {}

    @property
    def compiled(self) -> bool:
        """True when blocks run in compiled code."""
        return self._pass is not None

    def compile(self, output: Linear) -> None:
        """Have blocks without masks run in compiled code, where that has the products.

        Args:
            output: Maps final rows to logits; on the same kernel, the same call takes it along.
        """
        if self._block not in kernels.PANELS.values():
            return
        from dartree_core.compiled.passes import CompiledPass, Context, Layer, Shape
        from dartree_core.compiled.products import Panels

        spec = self._spec
        layers = [
            Layer(
                array(layer.attention_norm.weight),
                panels(layer.qkv),
                array(layer.head_norm.squeeze(1)),
                panels(layer.out),
                array(layer.mlp_norm.weight),
                panels(layer.gate_up),
                panels(layer.down),
            )
            for layer in self._layers
        ]
        shape = Shape(
            spec.hidden_size,
            spec.intermediate_size,
            spec.num_heads,
            spec.num_kv_heads,
            spec.head_dim,
            spec.rms_eps,
        )
        fc, context, head = self._backbone.fc, None, None
        assert isinstance(fc, kernels.Packed)
        if isinstance(fc.run, Panels):
            context = Context(fc.run, array(self._backbone.hidden_norm.weight))
        if isinstance(output, Panels) and output.kind == layers[0].qkv.kind:
            head = output
        norm = array(self._backbone.norm.weight)
        self._pass = CompiledPass(layers, norm, shape, normed=True, head=head, context=context)

    def _take(self, layer: nn.Module, kernel: str) -> _Layer:
        assert isinstance(layer, DraftLayer)
        attention, mlp, spec = layer.self_attn, layer.mlp, self._spec
        q, k = attention.q_norm.weight.detach(), attention.k_norm.weight.detach()
        of_heads = (q.expand(spec.num_heads, 1, -1), k.expand(spec.num_kv_heads, 1, -1))
        return _Layer(
            attention_norm=layer.input_layernorm,
            qkv=kernels.fuse(attention, ("q_proj", "k_proj", "v_proj"), kernel),
            head_norm=torch.cat(of_heads),
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
            _, keys, values = self._heads(layer, context, cos, sin)
            cache.place(i, keys, values)
        cache.length += len(context)

    def __call__(
        self,
        x: Tensor,
        cache: DraftCache,
        features: Tensor | None = None,
        masks: Sequence[Tensor | None] | None = None,
        asked: int | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Commit context, and draft behind it.

        Args:
            x: `[n, H]`, embeddings of `[root, mask, ...]`.
            cache: Committed context; the new positions are added once the pass is complete.
            features: `[t, layers * H]` of the next `t` positions, the root's follow; or None.
            masks: Per layer bool `[n, length + t + n]`, or None for no mask, there or anywhere.
            asked: How many of the last rows' logits are wanted; None for all.

        Returns:
            Final-normed hidden states `[n, H]`; and logits `[asked, Vd]`, or None where they
            cost a call of their own.
        """
        if self._pass is not None and not masks:
            return self._run(self._pass, x, cache, features, asked)
        context = x[:0] if features is None else self._encode(features)
        new, n = len(context), len(x)
        cos, sin = self._factors(cache.length, new + n)
        for i, layer in enumerate(self._layers):
            h = _normed(layer.attention_norm, x)
            rows = torch.cat((context, h)) if new else h
            q, k, v = self._heads(layer, rows, cos, sin)
            keys, values = cache.place(i, k, v)
            mask = masks[i] if masks else None
            x = x + layer.out(self._attend(q[:, new:], keys, values, mask))
            gate, up = layer.gate_up(_normed(layer.mlp_norm, x)).chunk(2, dim=-1)
            x = x + layer.down(F.silu(gate) * up)
        cache.length += new
        return _normed(self._backbone.norm, x), None

    def _run(
        self,
        run: CompiledPass,
        x: Tensor,
        cache: DraftCache,
        features: Tensor | None,
        asked: int | None,
    ) -> tuple[Tensor, Tensor | None]:
        """As `__call__`, in compiled code; writes over `x`."""
        context = features
        if features is not None and not run.makes_context:
            context = self._encode(features)
        new, n = 0 if context is None else len(context), len(x)
        start = cache.length
        held = cache.room(self._like, start + new + n)
        everything = self._everything.get(n)
        if everything is None:
            everything = self._everything[n] = torch.ones(n, n, dtype=torch.bool)
        rope = self._rope
        passed = run(
            x,
            torch.from_numpy(np.arange(start, start + new + n)),
            (rope.cos, rope.sin),
            held,
            start,
            context=context,
            visible=everything,
            asked=asked,
            rows=True,
        )
        cache.length += new
        assert passed.rows is not None
        return passed.rows, passed.logits

    def _encode(self, features: Tensor) -> Tensor:
        """As `DFlashBackbone.encode_context`."""
        rows: Tensor = self._backbone.fc(features)
        return _normed(self._backbone.hidden_norm, rows)

    def _factors(self, start: int, count: int) -> tuple[Tensor, Tensor]:
        """Rotary factors of `count` positions from `start`, as views of the tables."""
        rope = self._backbone.rope
        return rope.cos[start : start + count], rope.sin[start : start + count]

    def _heads(
        self, layer: _Layer, rows: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of rows `[n, H]`, each `[heads, n, D]`. What context rows
        would ask is not needed, and costs less than a product of its own for the others."""
        q, kv = self._spec.num_heads, self._spec.num_kv_heads
        heads = layer.qkv(rows).view(len(rows), -1, self._spec.head_dim).transpose(0, 1)
        turned = rotate(
            rms_norm(heads[: q + kv], None, self._spec.rms_eps).mul_(layer.head_norm), cos, sin
        )
        return turned[:q], turned[q:], heads[q + kv :]

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

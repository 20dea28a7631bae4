"""The lean path: a Llama-type decoder with nothing between the products.

Fused projections, one preallocated cache tensor, and one code path for prefill, plain steps and
tree verification. Weights come from the loaded transformers model, whose own forward pass
(`Target`) stays as the general path and the oracle in tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dartree_core.models import kernels
from dartree_core.models.kernels import Linear
from dartree_core.models.memory import Memory
from dartree_core.models.rope import rotate
from dartree_core.models.target import Target, TargetOutput

_GROWTH = 256
_ARCHITECTURES = {
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
}
_ROPES = {"default", "linear", "llama3", "yarn"}
"""Rotary types whose frequencies do not depend on the length so far."""


class LeanCache:
    """Keys and values `[layers, 2, kv_heads, capacity, head_dim]`; committed rows first.

    The same contract as `KVCache`, in one tensor: compaction is one move for all layers.
    """

    def __init__(self, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device):
        layers, heads, head_dim = shape
        self.length = 0
        self.data = torch.empty(layers, 2, heads, 0, head_dim, dtype=dtype, device=device)

    @property
    def capacity(self) -> int:
        """Positions there is room for."""
        return self.data.shape[3]

    @property
    def nbytes(self) -> int:
        """Bytes held now."""
        return self.data.numel() * self.data.element_size()

    def reserve(self, capacity: int) -> None:
        """Make room for `capacity` positions; committed rows stay."""
        if capacity <= self.capacity:
            return
        size = -(-max(capacity, self.capacity * 3 // 2) // _GROWTH) * _GROWTH
        grown = self.data.new_empty(*self.data.shape[:3], size, self.data.shape[4])
        grown[..., : self.length, :] = self.data[..., : self.length, :]
        self.data = grown

    @torch.inference_mode()
    def commit(self, rows: Tensor) -> None:
        """Keep these rows of the last pass (int64 `[m]`, ascending), and forget its others."""
        start, count = self.length, len(rows)
        if count and int(rows[-1]) != count - 1:
            self.data[..., start : start + count, :] = self.data.index_select(3, rows + start)
        self.length = start + count

    def crop(self, length: int) -> None:
        """Forget all positions from `length` on."""
        self.length = min(self.length, length)


@dataclass(slots=True)
class _Layer:
    attention_norm: Tensor
    qkv: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


def supports(config: Any) -> bool:
    """True when the lean path computes the function of models with this configuration."""
    names = set(getattr(config, "architectures", None) or [])
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    windowed = config.model_type == "mistral" and config.sliding_window is not None
    return (
        len(names & _ARCHITECTURES) == 1
        and getattr(config, "hidden_act", "silu") == "silu"
        and not getattr(config, "mlp_bias", False)
        and rope.get("rope_type", "default") in _ROPES
        and kinds == {"full_attention"}
        and not windowed
        and getattr(config, "quantization_config", None) is None
    )


class LeanTarget(Target):
    """A Llama-type model on the lean path; the interface is `Target`'s.

    Args:
        model: Loaded transformers model. Its layers' weights are taken over: the model itself
            cannot run any more afterwards.
        weights: Dtype the products' weights are kept in. On a CPU, float16 weights are multiplied
            with float32 activations; everything else stays in the model's dtype.
        memory: Where kernel measurements are kept.
        label, revision: As in `Target`.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        weights: torch.dtype | None = None,
        memory: Memory | None = None,
        label: str = "",
        revision: str = "",
    ) -> None:
        super().__init__(model, label=label, revision=revision)
        config = self.config
        self.weight_dtype = weights or self.dtype
        self._heads: int = config.num_attention_heads
        self._kv_heads: int = getattr(config, "num_key_value_heads", None) or self._heads
        self._head_dim: int = getattr(config, "head_dim", None) or self.hidden_size // self._heads
        self._eps: float = config.rms_norm_eps
        hf: Any = model
        decoder = hf.get_decoder()
        self._inverse: Tensor = decoder.rotary_emb.inv_freq.to(self.device, torch.float32)
        self._rope_scale = float(decoder.rotary_emb.attention_scaling)
        self._cos = self._sin = torch.empty(0, self._head_dim, device=self.device)
        names = kernels.candidates(self.device, self.weight_dtype)
        typical = decoder.layers[0].mlp.down_proj.weight.detach()
        self.kernel = kernels.choose(typical, names, memory or Memory())
        self._layers = [self._take(layer) for layer in decoder.layers]
        self._norm: Tensor = decoder.norm.weight.detach()
        self._head = self._pack(self.output.weight.detach(), self.output.bias)

    @property
    def path(self) -> str:
        """Which code computes the model, and the kernel of its products."""
        return f"lean ({self.kernel})"

    def new_cache(self) -> LeanCache:  # type: ignore[override]
        """An empty cache for one sequence."""
        shape = (self.num_layers, self._kv_heads, self._head_dim)
        return LeanCache(shape, self.dtype, self.device)

    def _pack(self, weight: Tensor, bias: Tensor | None) -> Linear:
        bias = None if bias is None else bias.detach()
        return kernels.KERNELS[self.kernel](weight, bias)

    def _fuse(self, *modules: nn.Linear) -> Linear:
        """One product for several projections of the same input; frees their own weights."""
        weight = torch.cat([m.weight.detach() for m in modules]).contiguous()
        biases = [m.bias.detach() for m in modules if m.bias is not None]
        for module in modules:
            module.weight = nn.Parameter(module.weight.new_empty(0), requires_grad=False)
        return self._pack(weight, torch.cat(biases) if biases else None)

    def _take(self, layer: Any) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
        q_norm, k_norm = (None if n is None else n.weight.detach() for n in norms)
        return _Layer(
            attention_norm=layer.input_layernorm.weight.detach(),
            qkv=self._fuse(attention.q_proj, attention.k_proj, attention.v_proj),
            q_norm=q_norm,
            k_norm=k_norm,
            out=self._fuse(attention.o_proj),
            mlp_norm=layer.post_attention_layernorm.weight.detach(),
            gate_up=self._fuse(mlp.gate_proj, mlp.up_proj),
            down=self._fuse(mlp.down_proj),
        )

    @torch.inference_mode()
    def forward(
        self,
        tokens: Tensor,
        cache: LeanCache,
        *,
        positions: Tensor | None = None,
        visible: Tensor | None = None,
        taps: Sequence[int] = (),
        last_only: bool = False,
    ) -> TargetOutput:
        """See `Target.forward`."""
        n, start = len(tokens), cache.length
        end = start + n
        cache.reserve(end)
        self._reserve_rope(end)
        if positions is None:
            positions = torch.arange(start, end, device=self.device)
        cos, sin = self._cos[positions], self._sin[positions]
        mask = self._mask(visible, n, start)
        x = self.embed(tokens)
        features = {}
        for i, layer in enumerate(self._layers):
            normed = self._normed(x, layer.attention_norm)
            x = x + self._attend(layer, normed, cos, sin, mask, cache, i)
            gate, up = layer.gate_up(self._normed(x, layer.mlp_norm)).chunk(2, dim=-1)
            x = x + layer.down(F.silu(gate) * up)
            if i in taps:
                features[i] = x
        if last_only:
            x = x[-1:]
        logits = self._head(self._normed(x, self._norm))
        return TargetOutput(
            logits=logits.float(),
            features=torch.cat([features[i] for i in taps], dim=-1) if taps else None,
        )

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self._eps)

    def _attend(
        self,
        layer: _Layer,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        mask: Tensor | None,
        cache: LeanCache,
        index: int,
    ) -> Tensor:
        n, heads, kv, dim = len(x), self._heads, self._kv_heads, self._head_dim
        start, end = cache.length, cache.length + len(x)
        qkv = layer.qkv(x).view(n, heads + 2 * kv, dim).transpose(0, 1)
        q, k, v = torch.split(qkv, [heads, kv, kv])
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._normed(q, layer.q_norm), self._normed(k, layer.k_norm)
        keys, values = cache.data[index]
        keys[:, start:end] = rotate(k, cos, sin)
        values[:, start:end] = v
        # Query heads that share a key head become rows of one attention problem: keys and values
        # are read once, not repeated.
        q = rotate(q, cos, sin).reshape(1, kv, heads // kv * n, dim)
        out = F.scaled_dot_product_attention(
            q, keys[None, :, :end], values[None, :, :end], attn_mask=mask
        )
        return layer.out(out.view(heads, n, dim).transpose(0, 1).reshape(n, heads * dim))

    def _mask(self, visible: Tensor | None, n: int, start: int) -> Tensor | None:
        """Boolean `[group * n, start + n]`, or None where a single row sees everything."""
        if n == 1:
            return None
        if visible is None:
            visible = torch.ones(n, n, dtype=torch.bool, device=self.device).tril()
        whole = torch.cat((visible.new_ones(n, start), visible), dim=1)
        return whole.repeat(self._heads // self._kv_heads, 1)

    def _reserve_rope(self, length: int) -> None:
        if len(self._cos) >= length:
            return
        length = -(-max(length, 2 * len(self._cos)) // _GROWTH) * _GROWTH
        angle = torch.outer(torch.arange(length, device=self.device).float(), self._inverse)
        angle = torch.cat((angle, angle), dim=-1)
        self._cos = (angle.cos() * self._rope_scale).to(self.dtype)
        self._sin = (angle.sin() * self._rope_scale).to(self.dtype)

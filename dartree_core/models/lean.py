"""The lean path: a Llama-type decoder with nothing between the products.

Fused projections, one preallocated cache tensor, and one code path for prefill, plain steps and
tree verification. Weights come from the loaded transformers model, whose own forward pass
(`Target`) stays as the general path and the oracle in tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dartree_core import compiled
from dartree_core.compiled.arrays import Array, array
from dartree_core.models import kernels
from dartree_core.models.arithmetic import Arithmetic, rms_norm
from dartree_core.models.buckets import MOST_ROWS
from dartree_core.models.graphs import Graphs, wanted
from dartree_core.models.kernels import Linear, panels
from dartree_core.models.lean_cache import LeanCache
from dartree_core.models.memory import Memory
from dartree_core.models.rope import rotate, tables
from dartree_core.models.target import Target, TargetOutput

if TYPE_CHECKING:
    from dartree_core.compiled.passes import CompiledPass
    from dartree_core.models.fused import Fused
    from dartree_core.models.static import StaticPasses

_GROWTH = 256
_ARCHITECTURES = {
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
}
ROPES = {"default", "linear", "llama3", "yarn"}
"""Rotary types whose frequencies do not depend on the length so far."""


@dataclass(slots=True)
class Layer:
    """Weights of one decoder layer; projections of the same input are fused."""

    attention_norm: Tensor
    qkv: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear

    @property
    def norms(self) -> tuple[Tensor, Tensor] | None:
        """Weights of the norms of queries and keys, where there are such norms."""
        if self.q_norm is None or self.k_norm is None:
            return None
        return self.q_norm, self.k_norm


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
        and rope.get("rope_type", "default") in ROPES
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
        graphs: Run short passes in fixed shapes, recorded as CUDA graphs; None does so on CUDA,
            unless the environment says no (see `graphs.wanted`).
        kernel: Of the products, see `kernels.named`; None for the fastest that computes what
            the weights say.
        label, revision: As in `Target`.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        weights: torch.dtype | None = None,
        memory: Memory | None = None,
        graphs: bool | None = None,
        kernel: str | None = None,
        label: str = "",
        revision: str = "",
    ) -> None:
        super().__init__(model, label=label, revision=revision)
        config = self.config
        self.weight_dtype = weights or self.dtype
        self.num_heads: int = config.num_attention_heads
        self.kv_heads: int = getattr(config, "num_key_value_heads", None) or self.num_heads
        self.head_dim: int = getattr(config, "head_dim", None) or self.hidden_size // self.num_heads
        self.eps: float = config.rms_norm_eps
        hf: Any = model
        decoder = hf.get_decoder()
        self._inverse: Tensor = decoder.rotary_emb.inv_freq.to(self.device, torch.float32)
        self._rope_scale = float(decoder.rotary_emb.attention_scaling)
        self._cos = self._sin = torch.empty(0, self.head_dim, device=self.device)
        names = kernels.candidates(self.device, self.weight_dtype, self.dtype)
        typical = self.output.weight.detach()[: kernels.TYPICAL]
        self.kernel = kernel or kernels.choose(typical, names, memory or Memory())
        self._arithmetic = Arithmetic()
        self._static: StaticPasses | None = None
        self.decoder_layers = [self._take(layer) for layer in decoder.layers]
        self._pass: CompiledPass | None = None
        self._table: Array | None = None
        self._norm: Tensor = decoder.norm.weight.detach()
        self._head = self._pack(self.output.weight.detach(), self.output.bias)
        if wanted(self.device, graphs):
            self.use_static(Graphs.on(self.device))

    @property
    def path(self) -> str:
        """Which code computes the model, the kernel of its products, and how it is launched."""
        facts = [self.kernel, *(["compiled"] if self._pass else [])]
        return f"lean ({', '.join((*facts, *(self._static.facts if self._static else ())))})"

    def compile(self) -> None:
        """Have whole passes run in compiled code, where that has the products. Long passes, as
        over a prompt, keep tensor operations between them."""
        if self.kernel not in kernels.PANELS.values():
            return
        from dartree_core.compiled.passes import CompiledPass, Shape
        from dartree_core.compiled.passes import Layer as Compiled

        shape = Shape(
            self.hidden_size,
            self.config.intermediate_size,
            self.num_heads,
            self.kv_heads,
            self.head_dim,
            self.eps,
        )
        gain = self._norm.new_ones(self.num_heads + self.kv_heads, self.head_dim)
        layers = []
        for layer in self.decoder_layers:
            if layer.norms is not None:
                q, k = layer.norms
                parts = q.expand(self.num_heads, -1), k.expand(self.kv_heads, -1)
                gain = torch.cat(parts)
            layers.append(
                Compiled(
                    array(layer.attention_norm),
                    panels(layer.qkv),
                    array(gain),
                    panels(layer.out),
                    array(layer.mlp_norm),
                    panels(layer.gate_up),
                    panels(layer.down),
                )
            )
        normed = self.decoder_layers[0].norms is not None
        head = panels(self._head)
        self._pass = CompiledPass(layers, array(self._norm), shape, normed=normed, head=head)
        if type(self.embedding) is nn.Embedding and compiled.fits(self.embedding.weight):
            self._table = array(self.embedding.weight)

    def new_cache(self) -> LeanCache:  # type: ignore[override]
        """An empty cache for one sequence."""
        if self._static:
            return self._static.new_cache()
        shape = (self.num_layers, self.kv_heads, self.head_dim)
        return LeanCache(shape, self.dtype, self.device)

    def _looked_up(self, tokens: Tensor) -> Tensor:
        """As `embed`, on a CPU: a look-up takes less time than a tensor operation."""
        if self._table is None:
            return self.embed(tokens)
        return torch.from_numpy(self._table[tokens.numpy()])

    def _pack(self, weight: Tensor, bias: Tensor | None) -> Linear:
        bias = None if bias is None else bias.detach()
        return kernels.named(self.kernel)(weight, bias)

    def _fuse(self, *modules: nn.Linear) -> Linear:
        """One product for several projections of the same input; frees their own weights."""
        weight = torch.cat([m.weight.detach() for m in modules]).contiguous()
        biases = [m.bias.detach() for m in modules if m.bias is not None]
        for module in modules:
            module.weight = nn.Parameter(module.weight.new_empty(0), requires_grad=False)
        return self._pack(weight, torch.cat(biases) if biases else None)

    def _take(self, layer: Any) -> Layer:
        attention, mlp = layer.self_attn, layer.mlp
        norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
        q_norm, k_norm = (None if n is None else n.weight.detach() for n in norms)
        return Layer(
            attention_norm=layer.input_layernorm.weight.detach(),
            qkv=self._fuse(attention.q_proj, attention.k_proj, attention.v_proj),
            q_norm=q_norm,
            k_norm=k_norm,
            out=self._fuse(attention.o_proj),
            mlp_norm=layer.post_attention_layernorm.weight.detach(),
            gate_up=self._fuse(mlp.gate_proj, mlp.up_proj),
            down=self._fuse(mlp.down_proj),
        )

    def use_static(self, graphs: Graphs | None) -> None:
        """Give sessions begun from now on passes of fixed shapes, run by `graphs`; None for
        passes that each have their own shape. Only the latest kind of session stays static."""
        from dartree_core.models.static import StaticPasses

        self._static = StaticPasses(self, graphs) if graphs else None

    @property
    def graphs(self) -> Graphs | None:
        """What runs static passes, or None where every pass has its own shape."""
        return self._static.graphs if self._static else None

    @property
    def fused(self) -> Fused | None:
        """Kernels for what lies between products, where static passes use them."""
        return self._static.fused if self._static else None

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
        """See `Target.forward`.

        With static passes, results of a short pass live in buffers of its session: they are
        valid until that session's next pass.
        """
        n, start = len(tokens), cache.length
        if self._static and n <= MOST_ROWS and self._static.owns(cache):
            return self._static.forward(
                tokens, cache, positions, visible, tuple(taps), last_only=last_only
            )
        end = start + n
        cache.reserve(end)
        self._reserve_rope(end)
        tokens = tokens.to(self.device)
        if positions is None:
            positions = torch.arange(start, end, device=self.device)
        positions = positions.to(self.device)
        if self._pass is not None and n <= MOST_ROWS:
            passed = self._pass(
                self._looked_up(tokens),
                positions,
                (self._cos, self._sin),
                cache.data,
                start,
                visible=visible,
                taps=taps,
                asked=1 if last_only else None,
                choice=True,
            )
            assert passed.logits is not None
            return TargetOutput(passed.logits, passed.features, passed.choice)
        cos, sin = self._cos[positions], self._sin[positions]
        mask = self._mask(None if visible is None else visible.to(self.device), n, start)

        # Views for all layers at once: a dozen in every layer would take as long as its norms.
        fresh = cache.data[..., start:end, :].flatten(0, 1).unbind()
        known = cache.data[..., :end, :].flatten(0, 1).unsqueeze(1).unbind()

        def attend(index: int, layer: Layer, qkv: Tensor) -> Tensor:
            q, k, v = self.heads(layer, qkv, cos, sin)
            fresh[2 * index].copy_(k)
            fresh[2 * index + 1].copy_(v)
            return self.attention(q, known[2 * index], known[2 * index + 1], mask)

        x, features = self.decode(self.embed(tokens), attend, taps)
        if last_only:
            x = x[-1:]
        return TargetOutput(logits=self.project(x).float(), features=features)

    def decode(
        self,
        x: Tensor,
        attend: Callable[[int, Layer, Tensor], Tensor],
        taps: Sequence[int],
        arithmetic: Arithmetic | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """All layers, for any way to keep keys and values.

        Args:
            x: Embedded rows `[n, H]`.
            attend: Maps (layer index, layer, fused projections `[n, (heads + 2 * kv) * D]`) to
                attended rows `[n, heads * D]`, and keeps keys and values.
            taps: As in `forward`.
            arithmetic: How the rest is computed; None for PyTorch's operations.

        Returns:
            Final-normed rows `[n, H]`, and tapped outputs side by side or None.
        """
        ops = arithmetic or self._arithmetic
        found = {}
        delta: Tensor | None = None
        for i, layer in enumerate(self.decoder_layers):
            x, normed = ops.add_norm(x, delta, layer.attention_norm, self.eps)
            if i - 1 in taps:
                found[i - 1] = x
            delta = layer.out(attend(i, layer, layer.qkv(normed)))
            x, normed = ops.add_norm(x, delta, layer.mlp_norm, self.eps)
            delta = layer.down(ops.gated(layer.gate_up(normed)))
        x, normed = ops.add_norm(x, delta, self._norm, self.eps)
        found[self.num_layers - 1] = x
        return normed, torch.cat([found[i] for i in taps], dim=-1) if taps else None

    def project(self, x: Tensor) -> Tensor:
        """Logits `[n, V]` of final-normed rows, in the activations' dtype."""
        return self._head(x)

    def heads(
        self, layer: Layer, qkv: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries, rotated keys and values, `[heads, n, D]` each, of fused projections."""
        n, heads, kv = len(qkv), self.num_heads, self.kv_heads
        parts = qkv.view(n, heads + 2 * kv, self.head_dim).transpose(0, 1)
        v = parts[heads + kv :]
        if layer.norms is not None:
            given = parts[:heads], parts[heads : heads + kv]
            q, k = (rms_norm(x, w, self.eps) for x, w in zip(given, layer.norms, strict=True))
            return rotate(q, cos, sin), rotate(k, cos, sin), v
        turned = rotate(parts[: heads + kv], cos, sin)
        return turned[:heads], turned[heads:], v

    def attention(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Attended rows `[n, heads * D]`.

        Query heads that share a key head become rows of one attention problem: keys and values
        are read once, not repeated.

        Args:
            q: `[heads, n, D]`.
            keys, values: `[kv, t, D]`.
            mask: `[heads / kv * n, t]`, boolean or additive, or None.
        """
        heads, n, dim = q.shape
        kv = self.kv_heads
        folded = q.reshape(1, kv, heads // kv * n, dim)
        out = F.scaled_dot_product_attention(folded, keys[None], values[None], attn_mask=mask)
        return out.view(heads, n, dim).transpose(0, 1).reshape(n, heads * dim)

    def rope_tables(self, length: int) -> tuple[Tensor, Tensor]:
        """Rotary factors `[length, D]` of positions from 0 on, in the activations' dtype."""
        return tables(self._inverse, length, self._rope_scale, self.dtype)

    def _mask(self, visible: Tensor | None, n: int, start: int) -> Tensor | None:
        """Additive `[group * n, start + n]`, or None where a single row sees everything.

        Made once: attention kernels would convert a boolean one in every layer.
        """
        if n == 1:
            return None
        if visible is None:
            visible = torch.ones(n, n, dtype=torch.bool, device=self.device).tril()
        mask = torch.zeros(n, start + n, dtype=self.dtype, device=self.device)
        mask[:, start:].masked_fill_(~visible, float("-inf"))
        return mask.repeat(self.num_heads // self.kv_heads, 1)

    def _reserve_rope(self, length: int) -> None:
        if len(self._cos) >= length:
            return
        length = -(-max(length, 2 * len(self._cos)) // _GROWTH) * _GROWTH
        self._cos, self._sin = self.rope_tables(length)

"""What a pass has to move and to compute, from the shapes of the loaded models."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from dartree_core.draft.drafter import Drafter
from dartree_core.models.lean import LeanTarget
from dartree_core.models.target import Target


@dataclass(frozen=True, slots=True)
class Work:
    """Cost of a pass before anyone measures it.

    Attributes:
        weights: Weights that a pass multiplies with every row. Of a mixture of experts all are
            counted, though a pass may read fewer.
        weight_bytes: Bytes of these weights, each read once however many rows there are.
        kv_bytes: Bytes of keys and values of one context position, read by every pass.
        attention: Multiplications of one row with one context position, in all layers.
    """

    weights: int
    weight_bytes: int
    kv_bytes: int
    attention: int

    def bytes(self, context: int) -> int:
        """Bytes that a pass behind `context` positions reads."""
        return self.weight_bytes + self.kv_bytes * context

    def flops(self, rows: int, context: int) -> int:
        """Floating-point operations of a pass over `rows` rows behind `context` positions."""
        return 2 * rows * (self.weights + self.attention * context)


def target_work(target: Target) -> Work:
    """Work of a target pass whose rows all get logits."""
    config = target.config
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    dim = getattr(config, "head_dim", None) or target.hidden_size // heads
    if isinstance(target, LeanTarget):
        # The lean path keeps its weights in its kernels' own layouts; shapes say how many.
        layer = _block(target.hidden_size, config.intermediate_size, heads, kv_heads, dim)
        weights = target.num_layers * layer
    else:
        weights = sum(_matrices(layer) for layer in target.layers)
    weights += target.vocab_size * target.hidden_size
    return Work(
        weights=weights,
        weight_bytes=weights * target.weight_dtype.itemsize,
        kv_bytes=2 * target.num_layers * kv_heads * dim * target.dtype.itemsize,
        attention=2 * target.num_layers * heads * dim,
    )


def draft_work(drafter: Drafter) -> Work:
    """Work of one block: the backbone and the marginals, the head's calls left out."""
    spec, target = drafter.spec, drafter.target
    block = _block(
        spec.hidden_size, spec.intermediate_size, spec.num_heads, spec.num_kv_heads, spec.head_dim
    )
    weights = spec.num_layers * block + spec.draft_vocab_size * spec.hidden_size
    width = spec.num_kv_heads * spec.head_dim
    return Work(
        weights=weights,
        weight_bytes=weights * drafter.kernels.itemsize(target.weight_dtype),
        kv_bytes=2 * spec.num_layers * width * target.dtype.itemsize,
        attention=2 * spec.num_layers * spec.num_heads * spec.head_dim,
    )


def _block(hidden: int, inner: int, heads: int, kv_heads: int, dim: int) -> int:
    """Weights of a decoder layer: fused projections in and out, gate, up and down."""
    return hidden * (heads + 2 * kv_heads) * dim + heads * dim * hidden + 3 * hidden * inner


def _matrices(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters() if p.dim() > 1)

"""Does a model say of a token in a tree what it says of it alone? Measured, not assumed.

Everything rests on it: a row of a pass must depend on its own path and on nothing else. Models
that count distance by row instead of by position break it, and so do kernels that scale
activations by what else is in the batch. No list of architectures could name them all.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dartree_core.errors import CheckpointError
from dartree_core.models.kv_cache import KVCache
from dartree_core.models.target import Target

ROUNDING = {torch.float32: 1e-3, torch.float16: 0.25, torch.bfloat16: 1.0}
"""Logit differences that a batch's shape alone can cause; a wider margin is a real divergence."""

_SHARE = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.15}
"""The same, as a share of the logits' spread over the vocabulary."""
_FACTOR = 8.0
"""How much more than a batch's own noise a tree may add before its structure is to blame."""
_CONTEXT = 9
_NEEDED = _CONTEXT + 3


def rounding(target: Target) -> float:
    """How far logits of this target may differ by how its passes are cut: see `ROUNDING`. Products
    in bfloat16 round rows as bfloat16 activations are rounded."""
    coarse = target.weight_dtype == torch.bfloat16
    return ROUNDING[torch.bfloat16 if coarse else target.dtype]


@dataclass(frozen=True, slots=True)
class RowErrors:
    """How far rows of one pass are from the same tokens decoded one by one, as shares.

    Attributes:
        chain: Of tokens in a row: what the shape of a batch does.
        tree: Of tokens beside siblings, and of what follows once the siblings are dropped.
    """

    chain: float
    tree: float


def row_errors(target: Target) -> RowErrors:
    """Decode three tokens one by one, as a chain, and as a tree; compare their logits."""
    ids = torch.arange(_NEEDED, device=target.device) * 7 % target.vocab_size
    context, path = ids[:_CONTEXT], ids[_CONTEXT:]
    first, second, third = path[:1], path[1:2], path[2:]
    sibling = (first + 1) % target.vocab_size

    alone, cache = [], _behind(target, context)
    for token in (first, second, third):
        alone.append(target.forward(token, cache).logits)
        cache.commit(torch.arange(1, device=target.device))
    one_by_one = torch.cat(alone)

    chain = target.forward(path, _behind(target, context)).logits

    cache = _behind(target, context)
    visible = torch.tensor([[1, 0, 0], [0, 1, 0], [1, 0, 1]], device=target.device).bool()
    depth = torch.tensor([0, 0, 1], device=target.device)
    rows = torch.cat((first, sibling, second))
    tree = target.forward(rows, cache, positions=_CONTEXT + depth, visible=visible).logits
    cache.commit(torch.tensor([0, 2], device=target.device))
    walked = torch.cat((tree[:1], tree[2:], target.forward(third, cache).logits))
    return RowErrors(_worst(chain, one_by_one), _worst(walked, one_by_one))


def check_rows(target: Target) -> tuple[str, ...]:
    """Refuse a model whose trees are not exact.

    Returns:
        What the user should know, one sentence each: kernels that look at the whole batch are
        let through, since most of their outputs agree, but not without saying so.

    Raises:
        CheckpointError: The model cannot run a tree's pass, or a tree changes what it says.
    """
    if target.max_positions < _NEEDED:
        return ()
    name = target.model.__class__.__name__
    remedy = "Use a target such as Llama, Qwen, Gemma or Mistral, or decode with transformers."
    try:
        errors = row_errors(target)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError) as error:
        said = str(error).strip().splitlines() or [""]
        raise CheckpointError(
            f"{name} cannot run the pass that scores a tree ({type(error).__name__}: {said[0]}).",
            remedy,
        ) from error
    allowed = _SHARE[target.dtype]
    if errors.tree > max(allowed, _FACTOR * errors.chain):
        raise CheckpointError(
            f"{name} says something else of a token in a tree than of it alone (logits differ by "
            f"{errors.tree:.1%} of their spread): it counts distance by row, not by position.",
            remedy,
        )
    if errors.chain > allowed:
        return (
            f"This model's products depend on how many tokens are in a pass (logits differ by "
            f"{errors.chain:.1%} of their spread), so outputs need not equal plain decoding's; "
            "dartree verify tells where they do not.",
        )
    return ()


def _behind(target: Target, context: Tensor) -> KVCache:
    cache = target.new_cache()
    target.forward(context, cache, last_only=True)
    cache.commit(torch.arange(len(context), device=context.device))
    return cache


def _worst(found: Tensor, expected: Tensor) -> float:
    spread = (expected - expected.mean(dim=-1, keepdim=True)).norm(dim=-1)
    return float(((found - expected).norm(dim=-1) / spread.clamp(min=1e-12)).max())

"""First weights from the target: a drafter that starts out as a rough copy of its last layers.

From random weights a small drafter sits near unigram accuracy for a long time. Three things
shorten that: features on one scale, the target's own last layers as the drafter's, and attention
that begins by looking at recent positions instead of everywhere.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dartree_core.draft.dflash import DraftAttention, DraftLayer
from dartree_core.models.target import Target
from dartree_core.parallel.tables import whole
from dartree_core.train.model import TrainableDrafter

_LAST_TAP = 0.7
"""Weight with which the last tapped layer passes straight into the context vectors."""

_RECENCY = 1.2
"""Strength of the pull towards recent positions."""

_FAST = 0.56
"""Share of rotary frequencies, fastest first, that carry it; slow ones cannot tell neighbours."""


@torch.no_grad()
def init_from_target(model: TrainableDrafter, target: Target, probe: Tensor) -> None:
    """Overwrite random weights with the target's where shapes agree.

    Args:
        model: Randomly initialised.
        target: Its last layers are copied; a target of other shapes gives what fits.
        probe: float32 `[n, taps * H]`, raw features.
    """
    spec, backbone = model.spec, model.backbone
    hidden = spec.hidden_size
    eye = torch.eye(hidden, device=probe.device)
    backbone.fc.weight.mul_(0.5)
    backbone.fc.weight[:, -hidden:] += _LAST_TAP * eye
    _copy_norm(backbone.norm, getattr(target.model.get_decoder(), "norm", None))  # type: ignore[operator]
    last = probe[:, -hidden:]
    to_unit = model.feature_scale[-hidden:] / last.pow(2).mean().sqrt()
    constant = _constant_direction(backbone.encode_context(probe / model.feature_scale))
    mask = target.embed(torch.tensor([spec.mask_token_id], device=probe.device)).float()[0]
    for layer, source in zip(backbone.layers, target.layers[-spec.num_layers :], strict=False):
        assert isinstance(layer, DraftLayer)
        _copy_layer(layer, source, to_unit)
        _look_back(layer.self_attn, constant, mask, backbone.rope.inverse, spec.block_size)


def _copy_layer(layer: DraftLayer, source: Any, to_unit: Tensor) -> None:
    """The target layer's value path and MLP.

    Args:
        layer: To be filled.
        source: A decoder layer of the target.
        to_unit: `[H]`, what the target's norm would multiply a unit-scaled feature by.
    """
    attention, mlp = getattr(source, "self_attn", None), getattr(source, "mlp", None)
    for name in ("gate_proj", "up_proj", "down_proj"):
        _copy(getattr(layer.mlp, name), getattr(mlp, name, None))
    _copy(layer.self_attn.o_proj, getattr(attention, "o_proj", None))
    # Where the MLP's input norm has a name of its own, the other one is of attention's output.
    before_mlp = getattr(source, "pre_feedforward_layernorm", None)
    before_mlp = before_mlp or getattr(source, "post_attention_layernorm", None)
    _copy_norm(layer.post_attention_layernorm, before_mlp)
    value = getattr(attention, "v_proj", None)
    norm = _gain(getattr(source, "input_layernorm", None))
    if _copy(layer.self_attn.v_proj, value) and norm is not None:
        layer.self_attn.v_proj.weight *= (norm * to_unit)[None]


def _copy(to: Any, source: Any) -> bool:
    weight = _numbers(source)
    if weight is None or weight.shape != to.weight.shape:
        return False
    to.weight.copy_(weight)
    return True


def _numbers(source: Any) -> Tensor | None:
    """A module's weight, float32; None where it has none, or keeps codes in its place."""
    weight: Any = getattr(source, "weight", None)
    weight = None if weight is None else whole(weight)
    if type(weight) not in (Tensor, nn.Parameter) or not weight.is_floating_point():
        return None
    # What has one byte for a number has its scale elsewhere.
    return weight.detach().float() if weight.element_size() > 1 else None


def _copy_norm(to: Any, source: Any) -> None:
    gain = _gain(source)
    if gain is not None and gain.shape == to.weight.shape:
        to.weight.copy_(gain)


def _gain(norm: Any) -> Tensor | None:
    """`[H]`, what a norm multiplies rows of unit size by: its weight, or one more than that."""
    weight = _numbers(norm)
    if weight is None:
        return None
    row = torch.ones_like(weight)
    row[1::2] = -1  # no mean either, for norms that take it out
    kept = norm._parameters
    # Whole and in full precision, and no hooks: a norm may be held in parts.
    norm._parameters = {n: p if p is None else whole(p).float() for n, p in kept.items()}
    try:
        gain: Tensor = (norm.forward(row) - norm.forward(-row)) * row / 2
    finally:
        norm._parameters = kept
    return weight if torch.allclose(gain, weight, rtol=1e-3, atol=1e-3) else gain


def _constant_direction(context: Tensor) -> Tensor:
    """A direction `[H]` along which all context vectors `[n, H]` read close to 1.

    Keys need a constant part for a rotary bias to act on; ridge regression finds one.
    """
    mean = context.mean(0)
    gram = context.T @ context / len(context)
    gram += 0.05 * torch.eye(len(gram), device=gram.device)
    direction = torch.linalg.solve(gram, mean)
    unit: Tensor = direction / (context @ direction).mean().clamp_min(1e-3)
    return unit


def _look_back(
    attention: DraftAttention, constant: Tensor, mask: Tensor, inverse: Tensor, reach: int
) -> None:
    """Make head i prefer the position a few steps behind a row, another distance for each head."""
    half = attention.head_dim // 2
    pattern = torch.zeros(half, device=constant.device)
    pattern[: max(1, round(_FAST * half))] = 1.0
    zeros = torch.zeros_like(pattern)
    query = F.rms_norm(mask, mask.shape)
    # A mask whose embedding is zero pulls nowhere.
    query = query / query.pow(2).sum().clamp_min(1e-3)
    key_rows = torch.cat((pattern, zeros))
    keys = attention.k_proj.weight.view(-1, 2 * half, len(constant))
    keys += _RECENCY * key_rows[None, :, None] * constant
    queries = attention.q_proj.weight.view(-1, 2 * half, len(constant))
    for head in range(len(queries)):
        distance = 1 + (head + 1) % reach
        angle = -distance * inverse.to(pattern)
        rows = torch.cat((pattern * angle.cos(), pattern * angle.sin()))
        queries[head] += _RECENCY * rows[:, None] * query

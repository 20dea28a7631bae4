"""What a drafter is taught: the target's own distributions, sooner slots first."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dartree_core.train.blocks import Blocks
from dartree_core.train.model import Tables, TrainableDrafter
from dartree_core.train.recipe import LossRecipe


@dataclass(slots=True)
class BlockLoss:
    """Loss of the blocks of one sequence.

    Attributes:
        total: Scalar to differentiate.
        terms: float32 `[3]`: base, corrected and feature term, detached.
        counts: float32 `[3, K]`: slots scored, base argmax right, corrected argmax right.
    """

    total: Tensor
    terms: Tensor
    counts: Tensor


def slot_weights(slots: int, decay: float) -> Tensor:
    """`exp(-k / decay)` for slots k = 0, 1, ...: later slots matter less, being reached less."""
    return torch.exp(-torch.arange(slots) / decay)


def head_share(recipe: LossRecipe, progress: float) -> float:
    """Weight of the corrected term at `progress` (0 to 1) of the run."""
    ramp = 1.0 if recipe.head_ramp == 0 else min(1.0, progress / recipe.head_ramp)
    return recipe.head_start + (recipe.head_end - recipe.head_start) * ramp


def block_loss(
    model: TrainableDrafter,
    tables: Tables,
    features: Tensor,
    final: Tensor,
    blocks: Blocks,
    recipe: LossRecipe,
    share: float,
    generator: torch.Generator,
) -> BlockLoss:
    """Loss of one sequence's blocks.

    Args:
        model: The drafter.
        tables: The target's.
        features: `[t, taps * H]` context features of the sequence.
        final: `[t, H]` the target's final hidden states, from which it chooses the next token.
        blocks: Of the sequence.
        recipe: Weights.
        share: Weight of the corrected term, see `head_share`.
        generator: Draws slots when the recipe samples them.
    """
    targets = tables.rows[blocks.tokens[:, 1:]]
    reached = _reachable(blocks.valid, targets)
    weights = slot_weights(targets.shape[1], recipe.decay).to(targets.device).expand_as(targets)
    if recipe.sample_slots:
        draw = torch.rand(targets.shape, generator=generator).to(targets.device)
        chosen = reached & (draw < weights)
        weights = torch.ones_like(weights)
    else:
        chosen = reached
    hidden = model.hidden(features, blocks, tables)
    block, slot = chosen.nonzero(as_tuple=True)
    w, truth = weights[chosen], targets[chosen]
    z = hidden[block, slot]
    wanted = final[blocks.anchors[block] + slot].float()
    teacher = tables.teacher(wanted) if recipe.soft > 0 else None

    base = tables.logits(z)
    base_term = _mean(cross_entropy(base, teacher, truth, recipe.soft), w)
    corrected_term = base_term.new_zeros(())
    corrected = base
    if share > 0 or model.spec.head != "none":
        corrected = model.corrected(base, z, model.states(blocks, tables)[block, slot], slot)
        corrected_term = _corrected_term(base, corrected, teacher, truth, w, recipe)
    error = (z.float() - wanted).pow(2).mean(-1) / wanted.pow(2).mean().clamp_min(1e-6)
    feature_term = _mean(error, w)

    total = (1 - share) * base_term + share * corrected_term + recipe.feature_weight * feature_term
    with torch.no_grad():
        right = [logits.argmax(-1) == truth for logits in (base, corrected)]
        marks = torch.stack((torch.ones_like(right[0]), *right)).float()
        counts = marks.new_zeros(3, targets.shape[1]).index_add_(1, slot, marks)
    return BlockLoss(total, torch.stack((base_term, corrected_term, feature_term)).detach(), counts)


def _reachable(valid: Tensor, targets: Tensor) -> Tensor:
    """Slots a tree can reach: none follows a token outside the drafter's vocabulary."""
    known = (targets >= 0).long().cumprod(dim=1).bool()
    return valid & known


def _corrected_term(
    base: Tensor,
    corrected: Tensor,
    teacher: Tensor | None,
    truth: Tensor,
    weights: Tensor,
    recipe: LossRecipe,
) -> Tensor:
    if not recipe.candidates:
        return _mean(cross_entropy(corrected, teacher, truth, recipe.soft), weights)
    within = base.detach().topk(min(recipe.candidates, base.shape[1]), dim=-1).indices
    hit = within == truth[:, None]
    if recipe.soft < 1:
        # A token outside the set has no rank in it: nothing to learn for the hard share.
        weights = weights * hit.any(-1)
    if teacher is not None:
        teacher = teacher.gather(1, within)
        teacher = teacher / teacher.sum(-1, keepdim=True).clamp_min(1e-9)
    loss = cross_entropy(corrected.gather(1, within), teacher, hit.long().argmax(-1), recipe.soft)
    return _mean(loss, weights)


def cross_entropy(logits: Tensor, teacher: Tensor | None, truth: Tensor, soft: float) -> Tensor:
    """Per row, against the teacher's distribution and the true token, in shares of `soft`.

    Args:
        logits: `[n, V]`.
        teacher: `[n, V]` probabilities; None when `soft` is 0.
        truth: int64 `[n]`.
        soft: The teacher's share.
    """
    logp = torch.log_softmax(logits, dim=-1)
    loss = torch.zeros_like(logp[:, 0])
    if teacher is not None:
        loss = loss - soft * (teacher * logp).sum(-1)
    if soft < 1:
        loss = loss - (1 - soft) * logp.gather(1, truth[:, None])[:, 0]
    return loss


def _mean(values: Tensor, weights: Tensor) -> Tensor:
    return (values * weights).sum() / weights.sum().clamp_min(1e-6)

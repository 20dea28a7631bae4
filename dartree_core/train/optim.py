"""The optimiser, its schedule and the running average of the weights."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from dartree_core.train.recipe import OptimiserRecipe


def make_optimiser(model: nn.Module, recipe: OptimiserRecipe) -> torch.optim.AdamW:
    """AdamW, with weight decay on matrices only."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in parameters if p.dim() >= 2]
    vectors = [p for p in parameters if p.dim() < 2]
    return torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": recipe.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=recipe.lr,
        betas=(recipe.beta1, recipe.beta2),
        fused=True,
    )


def learning_rate(recipe: OptimiserRecipe, step: int, steps: int) -> float:
    """Rate of step `step` (from 0) of `steps`: linear warm-up, hold, cosine down."""
    warm = min(1.0, (step + 1) / recipe.warmup) if recipe.warmup else 1.0
    begin = (1 - recipe.anneal) * steps
    fall = 0.0 if step < begin else min(1.0, (step - begin) / max(1.0, steps - begin))
    cosine = 0.5 * (1 + math.cos(math.pi * fall))
    return recipe.lr * warm * (recipe.final_lr + (1 - recipe.final_lr) * cosine)


class AveragedWeights:
    """Exponential moving average of parameters.

    Args:
        parameters: Followed in this order.
        decay: Weight of the past at each step; 0 follows exactly.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], decay: float) -> None:
        self._parameters = list(parameters)
        self.decay = decay
        self.values: list[Tensor] = [p.detach().clone() for p in self._parameters]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after step `step` (from 1); early steps average less far back."""
        decay = min(self.decay, step / (step + 10))
        torch._foreach_lerp_(self.values, [p.detach() for p in self._parameters], 1 - decay)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the model's weights with the averages; call again to change back."""
        for value, parameter in zip(self.values, self._parameters, strict=True):
            kept = value.clone()
            value.copy_(parameter)
            parameter.copy_(kept)

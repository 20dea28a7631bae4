"""A target in its quickest form, for the passes that training makes without gradients."""

from __future__ import annotations

import torch

from dartree_core.models import lean
from dartree_core.models.lean import LeanTarget
from dartree_core.models.target import Target
from dartree_core.train.precision import resolve_precision

HALF = "onednn-bf16"
"""The kernel of bfloat16 products, see `kernels.named`."""


def answerer(target: Target) -> Target:
    """The form that answers prompts: the lean path where it can be taken, multiplying in bfloat16
    where training does. It takes the weights over: `target` cannot run any more.
    """
    if not lean.supports(target.config):
        return target
    half = in_halves(target) if resolve_precision("auto", target.device) == torch.bfloat16 else None
    return half or LeanTarget(
        target.model, graphs=False, label=target.label, revision=target.revision
    )


def in_halves(target: Target) -> LeanTarget | None:
    """A float32 target on a CPU's lean path, its products in bfloat16; None where it has none.

    It takes the weights over: of `target` only the tables can be used any more.
    """
    if target.device.type != "cpu" or target.dtype != torch.float32:
        return None
    # A kind of its own, such as one shared between processes, computes in its own way.
    if type(target) is not Target or not lean.supports(target.config):
        return None
    return LeanTarget(
        target.model, graphs=False, kernel=HALF, label=target.label, revision=target.revision
    )

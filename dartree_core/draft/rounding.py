"""Which kernels a draft's products run on.

Nothing of an answer depends on how exactly it was drafted, so where 8-bit products are faster,
drafts may take them: on a CPU they cost a third. What reads the target's hidden states stays
exact: a few of their dimensions are a hundred times larger than the rest, and one scale for all
would leave the rest nothing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch import Tensor

from dartree_core.models import kernels
from dartree_core.models.memory import Memory
from dartree_core.models.target import Target

ENV = "DARTREE_EXACT_DRAFTS"
"""Environment variable: `1` keeps weights of drafters as they are."""


@dataclass(frozen=True, slots=True)
class DraftKernels:
    """Names of kernels, see `dartree_core.models.kernels.named`.

    Attributes:
        context: Of the product that reads the target's hidden states.
        block: Of all others.
    """

    context: str = "dense"
    block: str = "dense"

    def itemsize(self, dtype: torch.dtype) -> int:
        """Bytes of a block's weight, of a model whose weights are kept in `dtype`."""
        return 1 if self.block in kernels.ROUNDING else dtype.itemsize


def forbidden() -> bool:
    """True when the environment wants drafts to be exact."""
    return os.environ.get(ENV, "").strip() == "1"


def choose(
    target: Target, weight: Tensor, block_size: int, memory: Memory, *, rounded: bool
) -> DraftKernels:
    """The fastest kernels for a drafter of `target` on this machine.

    Args:
        target: Says the device and both dtypes.
        weight: A typical weight of the drafter, `[out, in]`.
        block_size: Rows of a draft.
        memory: Where measurements are kept.
        rounded: Whether products may round weights and rows; the environment may forbid it.
    """
    names = kernels.candidates(target.device, target.weight_dtype, target.dtype)
    exact = kernels.choose(weight, names, memory)
    if not rounded or forbidden():
        return DraftKernels(exact, exact)
    rounding = kernels.rounding(target.device, target.dtype)
    return DraftKernels(exact, kernels.choose(weight, (exact, *rounding), memory, (block_size,)))

"""Embedding and output tables that can be read without the rest of the model.

Drafters embed tokens and score them with the target's own tables. In a model that is spread over
devices those are parts, or somewhere else, and reading them would take all processes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from dartree_core.errors import ConfigError
from dartree_core.models.target import Target


def whole_tables(target: Target) -> tuple[Tensor, Tensor]:
    """Embedding and output table in full, `[V, H]` each, the same tensor where they are tied.

    All processes of a tensor-parallel target call this at the same time.
    """
    first, last = target.embedding.weight, target.output.weight
    embedding = whole(first)
    return embedding, embedding if last is first else whole(last)


def own_tables(target: Target, device: torch.device) -> None:
    """Give `target` whole copies of its tables on `device`, and run ours there.

    All processes of a tensor-parallel target call this, or `whole_tables`, at the same time.

    Raises:
        ConfigError: A table was placed where it cannot be read.
    """
    weights = whole_tables(target)
    if any(weight.is_meta for weight in weights):
        raise ConfigError(
            "The target's embedding or output table does not fit on the devices given.",
            "Use more devices, a smaller --dtype, or a map that places both.",
        )
    embedding, output = (weight.detach().to(device) for weight in weights)
    target.embedding = _standalone(target.embedding, embedding)
    target.output = _standalone(target.output, output)
    target.device = device


def whole(weight: Tensor) -> Tensor:
    """A weight in full; where it is held in parts, all processes must ask at the same time."""
    gather: Any = getattr(weight, "full_tensor", None)
    return weight if gather is None else gather().detach()


def _standalone(module: Any, weight: Tensor) -> Any:
    """The module as its class computes it, without what was hooked around it."""
    kind = next(
        cls
        for cls in type(module).__mro__
        if issubclass(cls, nn.Module) and not issubclass(cls, FSDPModule)
    )
    alone: Any = kind.__new__(kind)
    alone.__dict__ = {
        **module.__dict__,
        "_parameters": {
            **module._parameters,
            "weight": nn.Parameter(weight, requires_grad=False),
        },
        "_buffers": {
            name: buffer if buffer is None else buffer.to(weight.device)
            for name, buffer in module._buffers.items()
        },
        "_forward_hooks": {},
        "_forward_pre_hooks": {},
    }
    # Both tensor parallelism and accelerate put their version of `forward` on the instance.
    alone.__dict__.pop("forward", None)
    return alone

"""A frozen target whose weights several training processes hold in parts (FSDP2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dartree_core.errors import ConfigError
from dartree_core.models.loading import load_model
from dartree_core.models.target import Target
from dartree_core.parallel.tables import own_tables


class FrozenTarget(Target):
    """Each process keeps a share of every layer and collects a layer when it runs.

    So every pass takes all processes at the same time, each on a sequence of its own.
    """

    @property
    def path(self) -> str:
        """Which code computes the model, for display."""
        return "transformers, fully sharded"


def load_frozen(
    path: str | Path,
    *,
    device: torch.device,
    dtype: torch.dtype | None,
    trust_remote_code: bool = False,
    label: str = "",
    revision: str = "",
) -> FrozenTarget:
    """Load a target in parts, by transformers' own FSDP plan; all processes call it together.

    Args:
        path, trust_remote_code, label, revision: As in `load_target`.
        device: This process's.
        dtype: Of the weights; None for what is fastest there.

    Raises:
        CheckpointError: The directory is no loadable model.
        ConfigError: There is no group of processes, or transformers is too old.
    """
    from transformers.distributed import DistributedConfig

    if not dist.is_initialized():
        raise ConfigError(
            "A target can only be shared out between several processes.",
            "Start with torchrun --nproc-per-node N -m dartree_core train drafter ...",
        )
    if "fsdp_size" not in getattr(DistributedConfig, "__dataclass_fields__", {}):
        raise ConfigError(
            "This transformers cannot load a model in parts.", "Update it: transformers>=5.18."
        )
    parts: Any = DistributedConfig(fsdp_size=dist.get_world_size())
    model = load_model(path, device, dtype, trust_remote_code, distributed_config=parts)
    target = FrozenTarget(model, label=label or Path(path).name, revision=revision)
    own_tables(target, device)
    return target

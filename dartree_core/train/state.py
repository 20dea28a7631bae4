"""Everything a run needs to go on where it stopped, in one safetensors file.

Written beside and renamed into place, so a kill leaves the old state or the new one, never half.
Random numbers need no place in it: they are functions of the counters (`stream`).
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dartree_core.errors import CheckpointError
from dartree_core.train.model import TrainableDrafter
from dartree_core.train.optim import AveragedWeights

_FORMAT = "1"
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


@dataclass(slots=True)
class Counters:
    """How far a run is.

    Attributes:
        step: Optimiser steps made.
        visits: Sequences visited.
        blocks: Blocks seen.
        seconds: Time spent training.
    """

    step: int = 0
    visits: int = 0
    blocks: int = 0
    seconds: float = 0.0


def save_state(
    path: Path,
    model: TrainableDrafter,
    optimiser: torch.optim.Optimizer,
    average: AveragedWeights,
    counters: Counters,
    identity: dict[str, str],
) -> None:
    """Write the state atomically.

    Args:
        path: File to write.
        model, optimiser, average, counters: What to store.
        identity: What the run depends on; `load_state` hands it back.
    """
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {"feature_scale": model.feature_scale}
    for (name, parameter), mean in zip(model.named_parameters(), average.values, strict=True):
        tensors[f"weight.{name}"] = parameter.detach()
        tensors[f"average.{name}"] = mean
        held = optimiser.state.get(parameter, {})
        for moment in _MOMENTS:
            if moment in held:
                tensors[f"{moment}.{name}"] = held[moment].float()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    save_file(
        {n: t.contiguous().cpu() for n, t in tensors.items()},
        partial,
        metadata={
            "format": _FORMAT,
            "counters": json.dumps(asdict(counters)),
            "identity": json.dumps(identity),
            "embedding_scale": repr(model.embedding_scale),
        },
    )
    with partial.open("rb+") as file:
        os.fsync(file.fileno())
    partial.replace(path)


def load_state(
    path: Path,
    model: TrainableDrafter,
    optimiser: torch.optim.Optimizer,
    average: AveragedWeights,
) -> Counters:
    """Restore a run.

    Raises:
        CheckpointError: The file is damaged, or of a run with other shapes.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            meta = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"The training state {path} is damaged ({error}).",
            "Delete it to start the run afresh.",
        ) from error
    if meta.get("format") != _FORMAT:
        raise CheckpointError(
            f"The training state {path} is of another version.", "Start the run afresh."
        )
    model.feature_scale.copy_(tensors["feature_scale"])
    model.embedding_scale = float(meta["embedding_scale"])
    with torch.no_grad():
        for (name, parameter), mean in zip(model.named_parameters(), average.values, strict=True):
            stored = tensors.get(f"weight.{name}")
            if stored is None or stored.shape != parameter.shape:
                raise CheckpointError(
                    f"The training state {path} belongs to a drafter of other shapes ({name}).",
                    "Use the recipe the run was begun with, or another output directory.",
                )
            parameter.copy_(stored)
            mean.copy_(tensors[f"average.{name}"])
            moments = {m: tensors[f"{m}.{name}"] for m in _MOMENTS if f"{m}.{name}" in tensors}
            if moments:
                optimiser.state[parameter] = {m: t.to(parameter.device) for m, t in moments.items()}
    return Counters(**json.loads(meta["counters"]))


def read_identity(path: Path) -> dict[str, str]:
    """What the run in `path` depends on, as given to `save_state`.

    Raises:
        CheckpointError: The file is damaged.
    """
    identity: dict[str, str] = _header(path, "identity")
    return identity


def read_counters(path: Path) -> Counters:
    """How far the run in `path` is.

    Raises:
        CheckpointError: The file is damaged.
    """
    return Counters(**_header(path, "counters"))


def _header(path: Path, name: str) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            return json.loads((file.metadata() or {})[name])
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise CheckpointError(
            f"The training state {path} is damaged ({error}).",
            "Delete it to start the run afresh.",
        ) from error

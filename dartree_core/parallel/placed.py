"""A target whose layers accelerate has placed on several devices of one process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from dartree_core.errors import ConfigError
from dartree_core.models.loading import load_model
from dartree_core.models.selfcheck import check_rows
from dartree_core.models.target import Target
from dartree_core.parallel.tables import own_tables

NAMED_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")


class PlacedTarget(Target):
    """Layers anywhere, everything of ours on the output table's device.

    Logits are made there, and they are by far the largest thing a pass hands over; tapped hidden
    states are moved there, and accelerate's hooks move a pass's inputs from there to the layers.

    Args:
        model: Loaded with a `device_map`.
        label, revision: For display.

    Raises:
        ConfigError: The embedding or output table was left on disk.
    """

    def __init__(self, model: Any, *, label: str = "", revision: str = "") -> None:
        super().__init__(model, label=label, revision=revision)
        devices = getattr(model, "hf_device_map", {}).values()
        names = sorted({str(torch.device(d)) if d != "disk" else "disk" for d in devices})
        self._places = ", ".join(names) or str(self.device)
        own_tables(self, self.output.weight.device)

    @property
    def path(self) -> str:
        """Which code computes the model, for display."""
        return f"transformers on {self._places}"


def load_placed(
    path: str | Path,
    device_map: str,
    *,
    device: torch.device,
    dtype: torch.dtype | None,
    trust_remote_code: bool = False,
    label: str = "",
    revision: str = "",
) -> PlacedTarget:
    """Load a target over the devices of this process, as accelerate places it.

    Args:
        path, trust_remote_code, label, revision: As in `load_target`.
        device_map: One of `NAMED_MAPS`, or a JSON file of module name to device.
        device: Asked for its favourite dtype only.
        dtype: Of the weights; None for what is fastest there.

    Raises:
        CheckpointError: The directory is no loadable model.
        ConfigError: There is no such map, or a table does not fit.
    """
    placing = read_device_map(device_map)
    model = load_model(path, device, dtype, trust_remote_code, device_map=placing)
    target = PlacedTarget(model, label=label or Path(path).name, revision=revision)
    target.notes = check_rows(target)
    return target


def read_device_map(text: str) -> str | Mapping[str, Any]:
    """A `--device-map`: one of accelerate's names, or a JSON file of module to device.

    Raises:
        ConfigError: It is neither.
    """
    if text in NAMED_MAPS:
        return text
    remedy = f"Use {', '.join(NAMED_MAPS)}, or a JSON file such as " + '{"model.layers.0": 0, ...}.'
    try:
        found = json.loads(Path(text).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--device-map {text} is no known map and no readable file ({error}).", remedy
        ) from error
    if not isinstance(found, dict) or not found:
        raise ConfigError(f"--device-map {text} holds no map of modules to devices.", remedy)
    return found

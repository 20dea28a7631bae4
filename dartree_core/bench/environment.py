"""The machine and the versions that a run's figures belong to."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dartree_core.engine import Decoder


def models(decoder: Decoder) -> dict[str, Any]:
    """What decodes, where, in which precision, with which versions."""
    from dartree_core.engine.describe import drafter_facts, target_facts, versions

    return {
        "bundle": decoder.bundle,
        "target": target_facts(decoder.target),
        "drafter": drafter_facts(decoder.drafter),
        "device": device_name(decoder),
        "dtype": str(decoder.target.weight_dtype).removeprefix("torch."),
        "versions": versions(),
    }


def device_name(decoder: Decoder) -> str:
    """The device, with the accelerator's own name where it has one."""
    import torch

    device = decoder.target.device
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return str(device)


def environment(decoder: Decoder, machine: Mapping[str, Any], command: str) -> dict[str, Any]:
    """Everything a reader needs to judge the figures, or to measure them again.

    Args:
        decoder: What was measured.
        machine: Processor and memory.
        command: The command line.
    """
    import torch

    facts = {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        **models(decoder),
        "activation_dtype": str(decoder.target.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
        "machine": dict(machine),
        "load_average": load_average(),
    }
    if decoder.drafter is not None:
        facts["pass_ms_by_rows"] = decoder.budget_policy().costs.to_dict()
    return facts


def load_average() -> float | None:
    """Processes that wanted to run over the last minute, or None where that is unknown."""
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):
        return None

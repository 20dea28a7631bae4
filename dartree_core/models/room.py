"""Is there room? Memory that is free on a device, and what a checkpoint's weights will take."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from dartree_core import machine
from dartree_core.errors import CapacityError, CheckpointError
from dartree_core.weights import read_header, weight_files

_FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Kinds that loading converts, with the bytes they take in a file."""


def free_bytes(device: torch.device) -> int | None:
    """Bytes that can still be had on a device, or None where nobody knows."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # What the allocator holds for later serves this process too.
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + cached)
    return machine.look().available if device.type == "cpu" else None


def weight_bytes(folder: Path, dtype: torch.dtype) -> int | None:
    """Bytes of a checkpoint's tensors once loaded in `dtype`, from its files' headers.

    Tensors that are no floats, such as quantised weights, keep their size. None where a header
    cannot be read: loading will say why.
    """
    total = 0
    try:
        headers = [read_header(file) for file in weight_files(folder)]
        for tensor in (entry for header in headers for entry in header.values()):
            begin, end = tensor["data_offsets"]
            if tensor["dtype"] in _FLOATS:
                total += math.prod(tensor["shape"]) * dtype.itemsize
            else:
                total += end - begin
    except (CheckpointError, ValueError, KeyError, TypeError):
        return None
    return total


def require_weights(
    folder: Path, device: torch.device, dtype: torch.dtype, free: int | None = None
) -> None:
    """Refuse weights that do not fit, before anything is read.

    Args:
        folder: Holds the checkpoint.
        device, dtype: Where and in which precision it will be loaded.
        free: Bytes that are free; None asks the device.

    Raises:
        CapacityError: They need more.
    """
    free = free_bytes(device) if free is None else free
    needed = weight_bytes(folder, dtype)
    if free is None or needed is None or needed <= free:
        return
    name = str(dtype).removeprefix("torch.")
    smaller = "Use a dtype of half the size (--dtype bfloat16)" if dtype.itemsize > 2 else ""
    raise CapacityError(
        f"The weights in {folder} take {text(needed)} in {name}, but only {text(free)} of "
        f"{device.type} memory are free.",
        f"{smaller or 'Use a smaller model'}, another --device, or free some memory.",
    )


def text(size: float) -> str:
    """Bytes as people read them."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"

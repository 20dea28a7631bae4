"""Small transfers between host and device: pinned, asynchronous, and awaited only where needed.

Pageable memory makes every copy wait for all work queued before it. Where the device is the CPU
these are plain copies, so that the same code runs everywhere.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Upload:
    """A host buffer and its twin on the device.

    Args:
        size: Elements.
        dtype: Of the elements.
        device: Where the twin lives; its address never changes.

    Attributes:
        there: The device's buffer, `[size]`.
    """

    def __init__(self, size: int, dtype: torch.dtype, device: torch.device) -> None:
        self.there = torch.zeros(size, dtype=dtype, device=device)
        on_cuda = device.type == "cuda"
        self._here = torch.zeros(size, dtype=dtype, pin_memory=True) if on_cuda else self.there
        self._sent = torch.cuda.Event() if on_cuda else None  # type: ignore[no-untyped-call]

    def open(self) -> Tensor:
        """The host's buffer, to be filled in; waits until what was sent from it has arrived."""
        if self._sent is not None:
            self._sent.synchronize()
        return self._here

    def send(self) -> None:
        """Copy the host's buffer to the device, in order with the device's other work."""
        if self._sent is not None:
            self.there.copy_(self._here, non_blocking=True)
            self._sent.record(torch.cuda.current_stream(self.there.device))


class Download:
    """Brings a device tensor to the host through a pinned buffer that is kept."""

    def __init__(self) -> None:
        self._here: Tensor | None = None

    def fetch(self, tensor: Tensor) -> Tensor:
        """A host copy of a 1-d tensor; waits for the device, once."""
        if tensor.device.type != "cuda":
            return tensor.to("cpu", copy=True)
        size = len(tensor)
        if self._here is None or self._here.dtype != tensor.dtype or len(self._here) < size:
            room = max(size, 4096)
            self._here = torch.empty(room, dtype=tensor.dtype, pin_memory=True)
        landed = self._here[:size]
        landed.copy_(tensor, non_blocking=True)
        torch.cuda.current_stream(tensor.device).synchronize()
        return landed.clone()

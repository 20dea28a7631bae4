"""The lean path's cache: keys and values of all layers in one tensor."""

from __future__ import annotations

import torch
from torch import Tensor

from dartree_core.models.arena import Sized

_GROWTH = 256


class LeanCache:
    """Keys and values `[layers, 2, kv_heads, capacity, head_dim]`; committed rows first.

    The same contract as `KVCache`, in one tensor: compaction is one move for all layers.
    """

    def __init__(self, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device):
        layers, heads, head_dim = shape
        self.length = 0
        self.data = torch.empty(layers, 2, heads, 0, head_dim, dtype=dtype, device=device)

    @property
    def capacity(self) -> int:
        """Positions there is room for."""
        return self.data.shape[3]

    @property
    def nbytes(self) -> int:
        """Bytes held now."""
        return self.data.numel() * self.data.element_size()

    @property
    def idle(self) -> Sized | None:
        """Memory outside this cache that it would be lent before any is taken."""
        return None

    def reserve(self, capacity: int) -> None:
        """Make room for `capacity` positions; committed rows stay."""
        if capacity <= self.capacity:
            return
        size = -(-max(capacity, self.capacity * 3 // 2) // _GROWTH) * _GROWTH
        grown = self.data.new_empty(*self.data.shape[:3], size, self.data.shape[4])
        grown[..., : self.length, :] = self.data[..., : self.length, :]
        self.data = grown

    @torch.inference_mode()
    def commit(self, rows: Tensor) -> None:
        """Keep these rows of the last pass (int64 `[m]`, ascending), and forget its others."""
        start, count = self.length, len(rows)
        if count and self._scattered(rows):
            self.data[..., start : start + count, :] = self.data.index_select(3, rows + start)
        self.length = start + count

    def _scattered(self, rows: Tensor) -> bool:
        """False when the rows already lie where they belong; an accelerator is not asked, since
        waiting for its answer takes longer than moving a few rows."""
        return self.data.device.type != "cpu" or rows.numpy()[-1] != len(rows) - 1

    def crop(self, length: int) -> None:
        """Forget all positions from `length` on."""
        self.length = min(self.length, length)

"""A preallocated key/value cache whose speculative tail is compacted in place.

Committed positions `[0, length)` are final. A forward pass writes its rows behind them; `commit`
moves the accepted rows up to the committed ones and forgets the rest, so a tree of any shape
costs one write and one small move per layer. An accepted node of depth d already carries
position `length + d`, so keys need no second rotation.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from dartree_core.models.arena import Sized

_GROWTH = 256


class _Layer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's slice, in the shape transformers' attention modules expect."""

    is_compileable = False
    is_croppable = True
    is_sliding = False

    def __init__(self, owner: KVCache) -> None:
        super().__init__()
        # A strong one would make a cycle, and keep a conversation's memory until the collector
        # looks at old objects.
        self._owner = weakref.ref(owner)

    @property
    def owner(self) -> KVCache:
        """The cache this layer belongs to."""
        owner = self._owner()
        assert owner is not None
        return owner

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        capacity = self.owner.capacity
        self.keys = key_states.new_empty(*key_states.shape[:2], capacity, key_states.shape[3])
        self.values = value_states.new_empty(
            *value_states.shape[:2], capacity, value_states.shape[3]
        )
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.owner.length
        end = start + key_states.shape[-2]
        self.keys[:, :, start:end] = key_states
        self.values[:, :, start:end] = value_states
        return self.keys[:, :, :end], self.values[:, :, :end]

    def grow(self, capacity: int) -> None:
        if not self.is_initialized:
            return
        used = self.owner.length
        for name in ("keys", "values"):
            old: Tensor = getattr(self, name)
            new = old.new_empty(*old.shape[:2], capacity, old.shape[3])
            new[:, :, :used] = old[:, :, :used]
            setattr(self, name, new)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.owner.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.owner.length

    def get_max_length(self) -> int:
        return -1


class KVCache(Cache):  # type: ignore[misc]
    """Target cache for a batch of one.

    Attributes:
        length: Committed positions.
        capacity: Positions there is room for, the uncommitted tail included.
    """

    def __init__(self, num_layers: int, capacity: int = 0) -> None:
        self.length = 0
        self.capacity = capacity
        super().__init__(layers=[_Layer(self) for _ in range(num_layers)])

    @property
    def idle(self) -> Sized | None:
        """Memory outside this cache that it would be lent before any is taken."""
        return None

    def reserve(self, capacity: int) -> None:
        """Make room for `capacity` positions; committed rows stay."""
        if capacity <= self.capacity:
            return
        larger = -(-max(capacity, self.capacity * 3 // 2) // _GROWTH) * _GROWTH
        for layer in self.layers:
            layer.grow(larger)
        self.capacity = larger  # not before: when memory runs out, all layers still have the old

    @torch.inference_mode()
    def commit(self, rows: Tensor) -> None:
        """Keep these rows of the last pass, in this order, and forget its other rows.

        Args:
            rows: int64 `[m]`, ascending offsets behind the committed positions.
        """
        start, count = self.length, len(rows)
        if not torch.equal(rows, torch.arange(count, device=rows.device)):
            source = rows + start
            for layer in self.layers:
                for part in (layer.keys, layer.values):
                    here = source.to(part.device)  # layers may be on several devices
                    part[:, :, start : start + count] = part.index_select(2, here)
        self.length = start + count

    def crop(self, length: int) -> None:
        """Forget all positions from `length` on."""
        self.length = min(self.length, length)

    @property
    def nbytes(self) -> int:
        """Bytes held now."""
        parts = [p for la in self.layers if la.is_initialized for p in (la.keys, la.values)]
        return sum(p.numel() * p.element_size() for p in parts)

"""The drafter's cache: keys and values of committed context."""

from __future__ import annotations

from torch import Tensor

from dartree_core.models.arena import Sized


class DraftCache:
    """Keys and values of committed context, `[layers, 2, kv_heads, capacity, head_dim]`.

    Blocks do not stay: only context features persist (conformance: the cache is cut back to the
    committed positions after every pass).
    """

    def __init__(self, num_layers: int) -> None:
        self.length = 0
        self._num_layers = num_layers
        self._data: Tensor | None = None

    @property
    def capacity(self) -> int:
        """Positions there is room for."""
        return 0 if self._data is None else self._data.shape[3]

    @property
    def nbytes(self) -> int:
        """Bytes held now."""
        return 0 if self._data is None else self._data.numel() * self._data.element_size()

    @property
    def idle(self) -> Sized | None:
        """Memory outside this cache that it would be lent before any is taken."""
        return None

    def append(self, new: list[tuple[Tensor, Tensor]]) -> None:
        """Add keys and values `[kv_heads, t, head_dim]` of `t` more positions."""
        for layer, (k, v) in enumerate(new):
            self.place(layer, k, v)
        self.length += new[0][0].shape[1]

    def place(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Put rows `[kv_heads, t, head_dim]` behind the committed ones.

        They are committed by raising `length`; what is not is overwritten next time.

        Returns:
            Views of the layer's keys and values, the new rows included.
        """
        end = self.length + k.shape[1]
        keys, values = self.room(k, end)[layer]
        keys[:, self.length : end] = k
        values[:, self.length : end] = v
        return keys[:, :end], values[:, :end]

    def room(self, like: Tensor, end: int) -> Tensor:
        """Keys and values of all layers, with room for `end` positions; heads, dtype and device
        are those of `like` `[kv_heads, t, head_dim]`."""
        held = self._data
        if held is None or held.shape[3] < end:
            capacity = -(-(end * 3 // 2) // 256) * 256
            larger = like.new_empty(self._num_layers, 2, len(like), capacity, like.shape[2])
            if held is not None:
                larger[..., : self.length, :] = held[..., : self.length, :]
            self._data = held = larger
        return held

    def context(self) -> list[tuple[Tensor, Tensor]]:
        """Per layer views of the committed keys and values."""
        if self._data is None:
            return []
        known = self._data[..., : self.length, :]
        return [(keys, values) for keys, values in known]

    def crop(self, length: int) -> None:
        """Forget all positions from `length` on."""
        self.length = min(self.length, length)

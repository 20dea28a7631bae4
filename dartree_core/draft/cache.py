"""The drafter's cache: keys and values of committed context."""

from __future__ import annotations

from torch import Tensor

from dartree_core.models.arena import Sized


class DraftCache:
    """Keys and values of committed context, per draft layer `[kv_heads, capacity, head_dim]`.

    Blocks do not stay: only context features persist (conformance: the cache is cut back to the
    committed positions after every pass).
    """

    def __init__(self, num_layers: int) -> None:
        self.length = 0
        self._layers: list[tuple[Tensor, Tensor] | None] = [None] * num_layers

    @property
    def capacity(self) -> int:
        """Positions there is room for."""
        held = self._layers[0]
        return 0 if held is None else held[0].shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes held now."""
        held = [tensor for layer in self._layers if layer is not None for tensor in layer]
        return sum(tensor.numel() * tensor.element_size() for tensor in held)

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
        keys, values = self.room(layer, k, end)
        keys[:, self.length : end] = k
        values[:, self.length : end] = v
        return keys[:, :end], values[:, :end]

    def room(self, layer: int, like: Tensor, end: int) -> tuple[Tensor, Tensor]:
        """A layer's keys and values `[kv_heads, capacity, head_dim]`, with room for `end`
        positions; heads, dtype and device are those of `like` `[kv_heads, t, head_dim]`."""
        held = self._layers[layer]
        if held is None or held[0].shape[1] < end:
            capacity = -(-(end * 3 // 2) // 256) * 256
            larger = [like.new_empty(len(like), capacity, like.shape[2]) for _ in range(2)]
            if held is not None:
                for new, old in zip(larger, held, strict=True):
                    new[:, : self.length] = old[:, : self.length]
            held = self._layers[layer] = (larger[0], larger[1])
        return held

    def context(self) -> list[tuple[Tensor, Tensor]]:
        """Per layer views of the committed keys and values."""
        held = [kv for kv in self._layers if kv is not None]
        return [(k[:, : self.length], v[:, : self.length]) for k, v in held]

    def crop(self, length: int) -> None:
        """Forget all positions from `length` on."""
        self.length = min(self.length, length)

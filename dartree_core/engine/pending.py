"""Context features that wait for the drafter."""

from __future__ import annotations

import torch
from torch import Tensor


class Pending:
    """Features of positions in order, joined only when they are wanted: a turn may decode plainly
    for hundreds of rounds before it drafts again."""

    def __init__(self) -> None:
        self._parts: list[Tensor] = []
        self._length = 0

    def __len__(self) -> int:
        """Positions."""
        return self._length

    def append(self, features: Tensor) -> None:
        """Features `[n, layers * H]` of the next `n` positions."""
        if len(features):
            self._parts.append(features)
            self._length += len(features)

    @property
    def joined(self) -> Tensor | None:
        """All of them, `[len, layers * H]`; None without any."""
        if len(self._parts) > 1:
            self._parts = [torch.cat(self._parts)]
        return self._parts[0] if self._parts else None

    def crop(self, length: int) -> None:
        """Keep the first `length` at most."""
        while self._length > max(0, length):
            last = self._parts.pop()
            self._length -= len(last)
            if self._length < length:
                self.append(last[: length - self._length])

    def clear(self) -> None:
        """Forget all."""
        self._parts, self._length = [], 0

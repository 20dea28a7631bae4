"""Position-keyed Gumbel noise.

The noise of a token at a position is a hash of (seed, position, token id) and nothing else: not
of call order, batch shape, tree size or device. So a seeded sampled run chooses the same tokens
whatever drafted them, and noise can be had for just the tokens one looks at, before or after the
target has scored them.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

_MASK32 = 0xFFFFFFFF
_MASK64 = 0xFFFFFFFFFFFFFFFF


def gumbel(seed: int, position: int, tokens: Tensor) -> Tensor:
    """Standard Gumbel noise for token ids at one absolute position of the sequence.

    Args:
        seed: 0 to 2**63 - 1.
        position: Absolute position of the token to be chosen.
        tokens: int64 ids, any shape.

    Returns:
        float32, same shape and device.
    """
    if tokens.device.type == "mps":  # has no float64; the values must be the same everywhere
        return gumbel(seed, position, tokens.cpu()).to(tokens.device)
    key = _splitmix64(_splitmix64(seed) ^ position)
    low, high = key & _MASK32, key >> 32
    # Two rounds of a 32-bit finaliser: every value stays below 2**32, so int64 arithmetic is
    # exact and the same on every device.
    mixed = _fmix32((tokens * 0x9E3779B1 + low) & _MASK32)
    mixed = _fmix32(mixed ^ high)
    uniform = (mixed.double() + 0.5) * 2.0**-32
    return -torch.log(-torch.log(uniform)).float()


class PositionNoise:
    """Noise of a whole vocabulary by position, computed once whoever asks for it.

    Drafting looks at the positions that the target will choose at a little later, so with the
    rows kept for both, a token costs one row of noise, as in plain decoding.

    Args:
        seed: As in `gumbel`.
        window: Positions kept; the lowest go first.
    """

    def __init__(self, seed: int, window: int = 40) -> None:
        self.seed = seed
        self.window = window
        self._rows: dict[int, Tensor] = {}
        self._size = 0

    def row(self, position: int, size: int, device: torch.device) -> Tensor:
        """float32 `[size]`: the noise of token ids 0 to `size - 1` at `position`."""
        self._size = max(self._size, size)
        row = self._rows.get(position)
        if row is None or len(row) < size:
            row = gumbel(self.seed, position, torch.arange(self._size, device=device))
            if len(self._rows) >= self.window:
                del self._rows[min(self._rows)]
            self._rows[position] = row
        return row[:size].to(device)

    def rows(self, positions: Iterable[int], size: int, device: torch.device) -> Tensor:
        """float32 `[len(positions), size]`."""
        return torch.stack([self.row(p, size, device) for p in positions])


def _fmix32(x: Tensor) -> Tensor:
    """murmur3's 32-bit finaliser."""
    x = x ^ (x >> 16)
    x = (x * 0x85EBCA6B) & _MASK32
    x = x ^ (x >> 13)
    x = (x * 0xC2B2AE35) & _MASK32
    return x ^ (x >> 16)


def _splitmix64(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)

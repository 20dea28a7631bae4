"""The order in which training visits its corpus: a pure function of the seed and a counter.

Nothing about it needs to be stored but how many visits were made, so a resumed run sees exactly
what an unbroken one would have seen, on any number of processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

_MIX = 0x9E3779B97F4A7C15
_MASK = 2**63 - 1


def keyed_generator(seed: int, *key: int) -> torch.Generator:
    """A CPU generator whose state depends on `seed` and `key` alone."""
    state = seed & _MASK
    for part in key:
        state = ((state ^ part) * _MIX + 0x632BE59BD9B4E019) & _MASK
        state ^= state >> 29
    return torch.Generator().manual_seed(state)


@dataclass(frozen=True, slots=True)
class VisitOrder:
    """Epoch after epoch, every sample equally often, in an order of its own.

    An epoch goes through the samples window by window; within a window, its samples' visits are
    mixed.

    Attributes:
        size: Samples in the corpus.
        seed: Of the order.
        repeat: Visits to a sample in one epoch.
        window: Samples in a window; 0 for all of them.
    """

    size: int
    seed: int
    repeat: int = 1
    window: int = 0

    def sample(self, visit: int) -> int:
        """Index of the sample at the `visit`-th visit since the run began."""
        epoch, place = divmod(visit, self.size * self.repeat)
        window = self.window or self.size
        number, within = divmod(place, window * self.repeat)
        members = _shuffled(self.size, self.seed, 1, epoch)[number * window :][:window]
        visits = _shuffled(len(members) * self.repeat, self.seed, 5, epoch, number)
        return int(members[visits[within] % len(members)])

    def generator(self, visit: int) -> torch.Generator:
        """Randomness of one visit: which anchors, which slots."""
        return keyed_generator(self.seed, 2, visit)


@lru_cache(maxsize=4)
def _shuffled(size: int, seed: int, *key: int) -> torch.Tensor:
    return torch.randperm(size, generator=keyed_generator(seed, *key))

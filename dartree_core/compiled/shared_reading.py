"""What the target made of a tree, read by PyTorch's threads."""

# Functions are compiled by Numba, not run by Python: types are Numba's.
# mypy: ignore-errors

from __future__ import annotations

from numba import types

from dartree_core.compiled import openmp
from dartree_core.compiled.jit import entry
from dartree_core.compiled.reading import ARGUMENTS, begin, end, read


def _read(reading):
    read(reading, openmp.thread(), openmp.threads())


_together = openmp.crew(_read)


@entry(*ARGUMENTS, types.int64)
def read_targets(logits, parent, token, logp, rank, threads):
    """As `reading.read_targets`, by so many threads; the same numbers, whoever many they are."""
    reading = begin(logits, parent, token)
    _together(reading, threads)
    end(reading, logp, rank)

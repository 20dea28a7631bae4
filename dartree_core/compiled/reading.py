"""What the target made of a tree, in one call."""

# Functions are compiled by Numba, not run by Python: types are Numba's.
# mypy: ignore-errors

from __future__ import annotations

import numpy as np
from numba import types

from dartree_core.compiled.jit import entry
from dartree_core.compiled.maths import ZERO, log_total

_INDICES = types.int64[::1]


@entry(types.float32[:, ::1], _INDICES, _INDICES, types.float32[::1], _INDICES)
def read_targets(logits, parent, token, logp, rank):
    """What the target made of the rows it scored.

    Args:
        logits: float32 `[n + 1, V]`.
        parent: int64 `[n + 1]`, rows; the first row has none.
        token: int64 `[n + 1]`.
        logp: float32 `[n + 1]`, filled with each token's log-probability in its parent's row, 0
            for the first.
        rank: int64 `[n + 1]`, filled with its rank there, from 1; 0 for the first.
    """
    norm = np.full(len(parent), np.float32(np.nan))
    logp[0], rank[0] = ZERO, 0
    for i in range(1, len(parent)):
        row, own = parent[i], logits[parent[i], token[i]]
        if np.isnan(norm[row]):
            norm[row] = log_total(logits[row])
        above = np.int32(0)
        for j in range(logits.shape[1]):
            above += np.int32(logits[row, j] > own)
        logp[i], rank[i] = own - norm[row], above + 1

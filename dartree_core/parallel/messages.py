"""What rank 0 tells the others of a tensor-parallel target: load it, and compute this pass.

Only rank 0 drafts, chooses, measures and speaks to the user; the tree it wants verified, and the
rows it accepted before, are in its messages. So nothing that depends on timing, on a signal or on
rounding can be decided differently elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Shard:
    """Load your part of a target.

    Attributes:
        path: Folder, the same on every machine.
        dtype: Of the weights, as in `torch.bfloat16` without the prefix; "" for the default.
        trust_remote_code: Run Python code the model brings.
    """

    path: Path
    dtype: str
    trust_remote_code: bool


@dataclass(frozen=True, slots=True)
class Edit:
    """A change to a cache, made before the pass it comes with.

    Attributes:
        what: `commit` rows of the last pass, `crop` to a length, or `drop` the cache.
        cache: Number of the cache.
        rows: Rows to commit.
        length: Length to crop to.
    """

    what: Literal["commit", "crop", "drop"]
    cache: int
    rows: tuple[int, ...] = ()
    length: int = 0


@dataclass(frozen=True, slots=True)
class Pass:
    """Compute rows of the target; fields as the arguments of `Target.forward`.

    Attributes:
        cache: Number of the cache.
        edits: Changes to caches since the last pass, in order.
        tokens: Ids.
        positions: Absolute positions, or None.
        visible: Bits of the square mask, row by row, or None.
        last_only: Project only the last row to logits.
    """

    cache: int
    edits: tuple[Edit, ...]
    tokens: tuple[int, ...]
    positions: tuple[int, ...] | None
    visible: bytes | None
    last_only: bool


def pack_mask(visible: Tensor | None) -> bytes | None:
    """A bool mask `[n, n]` as bits."""
    return None if visible is None else np.packbits(visible.cpu().numpy()).tobytes()


def unpack_mask(bits: bytes | None, rows: int) -> Tensor | None:
    """Inverse of `pack_mask`: bool `[rows, rows]` on the CPU."""
    if bits is None:
        return None
    flat = np.unpackbits(np.frombuffer(bits, dtype=np.uint8), count=rows * rows)
    return torch.from_numpy(flat.astype(np.bool_)).view(rows, rows)

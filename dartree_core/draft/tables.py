"""Token tables that a checkpoint stores: copies of the target's are borrowed, others are used.

Most drafters embed and project through their target's tables and store none. Some files hold
copies, which would cost a gigabyte twice, and some hold tables that were trained or cut down.
"""

from __future__ import annotations

import torch
from torch import Tensor


def own_embedding(stored: Tensor | None, target: Tensor) -> Tensor | None:
    """The drafter's own token table, or None where it has none or the target's.

    Args:
        stored: `[rows, H]` of the checkpoint, or None.
        target: `[V, H]`, the target's.

    Returns:
        `[max(rows, V), H]` in the target's dtype: ids that the drafter does not know are
        embedded as the target does.
    """
    own = _unless_copied(stored, target)
    return own if own is None else torch.cat((own, target.detach()[len(own) :]))


def output_table(stored: Tensor | None, target: Tensor) -> Tensor:
    """The output table to draft with, `[Vd, H]` in the target's dtype.

    Args:
        stored: `[rows, H]` of the checkpoint, or None.
        target: `[Vd, H]`, the target's rows of the tokens that can be drafted.
    """
    own = _unless_copied(stored, target)
    return (target if own is None else own[: len(target)]).detach()


def _unless_copied(stored: Tensor | None, target: Tensor) -> Tensor | None:
    if stored is None:
        return None
    stored = stored.to(target.device, target.dtype)
    rows = min(len(stored), len(target))
    return None if torch.equal(stored[:rows], target[:rows]) else stored

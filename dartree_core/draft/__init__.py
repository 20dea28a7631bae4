"""Drafting: backbone, correction heads, tree builders, checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dartree_core.lazy import exports

if TYPE_CHECKING:
    from dartree_core.draft.builders import BUILDERS, Builder, build_dartree
    from dartree_core.draft.checkpoint import DraftCheckpoint, read_checkpoint
    from dartree_core.draft.drafter import BlockDraft, DraftCache, Drafter, load_drafter
    from dartree_core.draft.heads import CorrectionHead
    from dartree_core.draft.spec import DraftSpec
    from dartree_core.draft.supertree import Supertree

__all__ = [
    "BUILDERS",
    "BlockDraft",
    "Builder",
    "CorrectionHead",
    "DraftCache",
    "DraftCheckpoint",
    "DraftSpec",
    "Drafter",
    "Supertree",
    "build_dartree",
    "load_drafter",
    "read_checkpoint",
]

__getattr__ = exports(
    __name__,
    {
        "BUILDERS": "dartree_core.draft.builders",
        "BlockDraft": "dartree_core.draft.drafter",
        "Builder": "dartree_core.draft.builders",
        "CorrectionHead": "dartree_core.draft.heads",
        "DraftCache": "dartree_core.draft.drafter",
        "DraftCheckpoint": "dartree_core.draft.checkpoint",
        "DraftSpec": "dartree_core.draft.spec",
        "Drafter": "dartree_core.draft.drafter",
        "Supertree": "dartree_core.draft.supertree",
        "build_dartree": "dartree_core.draft.builders",
        "load_drafter": "dartree_core.draft.drafter",
        "read_checkpoint": "dartree_core.draft.checkpoint",
    },
)

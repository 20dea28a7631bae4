"""Drafting: backbone, correction heads, tree builders, checkpoints."""

from __future__ import annotations

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

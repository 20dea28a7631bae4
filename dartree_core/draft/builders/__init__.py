"""Tree builders: every drafting method is one of these, behind one interface."""

from __future__ import annotations

from collections.abc import Mapping

from dartree_core.config import Method
from dartree_core.draft.builders.base import Builder, Embed, Steps
from dartree_core.draft.builders.chain import dflash, domino
from dartree_core.draft.builders.dartree import build_dartree, fixed, pruned
from dartree_core.draft.builders.ddtree import ddtree

__all__ = ["BUILDERS", "Builder", "Embed", "Steps", "build_dartree"]

BUILDERS: Mapping[Method, Builder] = {
    "dflash": dflash,
    "domino": domino,
    "ddtree": ddtree,
    "dartree": pruned,
    "dartree-fixed": fixed,
}
"""By method name; `ar` drafts nothing and has no builder."""

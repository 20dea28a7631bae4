"""Correction heads, by the name a checkpoint gives them."""

from __future__ import annotations

from collections.abc import Callable

from dartree_core.draft.heads.base import CorrectionHead
from dartree_core.draft.heads.domino import DominoHead
from dartree_core.draft.heads.none import NoHead
from dartree_core.draft.spec import DraftSpec, HeadKind

__all__ = ["CorrectionHead", "DominoHead", "NoHead", "make_head"]

_MAKERS: dict[HeadKind, Callable[[DraftSpec], CorrectionHead]] = {
    "none": lambda spec: NoHead(),
    "domino": DominoHead,
}


def make_head(spec: DraftSpec) -> CorrectionHead:
    """An uninitialised head of the kind `spec` names."""
    return _MAKERS[spec.head](spec)

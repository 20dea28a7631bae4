"""Correction heads, by the name a checkpoint gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dartree_core.draft.heads.base import CorrectionHead, Shapes
from dartree_core.draft.heads.domino import DominoHead
from dartree_core.draft.heads.dspark import DSparkHead
from dartree_core.draft.heads.none import NoHead
from dartree_core.draft.heads.selector import SelectorHead
from dartree_core.draft.spec import DraftSpec, HeadKind

__all__ = [
    "CorrectionHead",
    "DSparkHead",
    "DominoHead",
    "NoHead",
    "SelectorHead",
    "Shapes",
    "make_head",
]

_MAKERS: Mapping[HeadKind, Callable[[DraftSpec, Shapes | None], CorrectionHead]] = {
    "none": lambda spec, shapes: NoHead(),
    "domino": DominoHead,
    "dspark": DSparkHead,
    "selector": SelectorHead,
}


def make_head(spec: DraftSpec, shapes: Shapes | None = None) -> CorrectionHead:
    """An uninitialised head of the kind `spec` names.

    Args:
        spec: Shapes and kind.
        shapes: Of a checkpoint's tensors, which settle what its configuration leaves open; None
            for the head as it is trained here.
    """
    return _MAKERS[spec.head](spec, shapes)

"""What drafting runs as compiled loops on a CPU, where Numba is installed.

Drafts are small: as tensor operations they spend most of their time between operations. The
tensor code stays the general path, and the oracle in tests.
"""

from __future__ import annotations

import logging
import sys
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dartree_core.draft.compiled.blocks import CompiledBackbone
    from dartree_core.draft.compiled.trees import CompiledGrowth
    from dartree_core.draft.drafter import Drafter
    from dartree_core.draft.lean import LeanBackbone

log = logging.getLogger(__name__)


@cache
def available() -> bool:
    """True where loops run. The first call on a machine compiles them for some seconds; they are
    kept on disk beside the package, or in the user's cache where that cannot be written."""
    try:
        import numba
        from numba.core.errors import NumbaError
    except ImportError as error:
        log.info("Drafts take tensor operations: %s", error)
        return False
    if numba.config.DISABLE_JIT:
        return False
    try:
        import dartree_core.draft.compiled.loops  # noqa: F401
    except NumbaError as error:
        log.warning("Drafts take tensor operations: Numba could not compile (%s).", error)
        return False
    return True


def loaded() -> ModuleType | None:
    """The loops, where someone had them compiled; nobody should wait for that in between."""
    return sys.modules.get("dartree_core.draft.compiled.loops")


def growth(drafter: Drafter) -> CompiledGrowth | None:
    """Grows a drafter's trees; None where the builders have to."""
    if not available():
        return None
    from dartree_core.draft.compiled.trees import CompiledGrowth, supports

    if not supports(drafter.head):
        return None
    return CompiledGrowth(drafter.head, drafter.vocabulary, drafter.target.embed)


def backbone(lean: LeanBackbone) -> CompiledBackbone | None:
    """The same backbone with compiled loops; None where it has to do."""
    if not available():
        return None
    from dartree_core.draft.compiled.blocks import CompiledBackbone, supports

    return CompiledBackbone(lean) if supports(lean) else None

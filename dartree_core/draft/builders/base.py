"""What a tree builder is.

A builder is a generator: at every level it selects, it yields what describes the level, and in
the end it returns the tree. Decoding at full speed drains it (`supertree.finish`) and describes
nothing; step mode shows each level before asking for the next one, with the very same code.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Protocol, TypeAlias

from torch import Tensor

from dartree_core.config import TreeConfig
from dartree_core.draft.drafter import BlockDraft
from dartree_core.draft.heads import CorrectionHead
from dartree_core.draft.heads.base import Embed
from dartree_core.draft.supertree import Level, Supertree

__all__ = ["Builder", "Embed", "Steps"]

Steps: TypeAlias = Generator[Callable[[], Level], None, Supertree]


class Builder(Protocol):
    """Grow a tree on one block."""

    def __call__(
        self,
        block: BlockDraft,
        head: CorrectionHead,
        root: Tensor,
        embed: Embed,
        tree: TreeConfig,
        max_depth: int,
        enough: int | None = None,
    ) -> Steps:
        """Yield levels, return the tree.

        Args:
            block: The drafter's marginals.
            head: Correction head; builders on marginals ignore it.
            root: int64 `[1]`, the last committed token.
            embed: The target's embedding.
            tree: Settings.
            max_depth: Deepest node wanted, at most `block.num_slots`; the turn may need fewer
                tokens than a block proposes.
            enough: Nodes that will be verified at most, where nobody looks at the others: a
                builder that prunes may stop once this many are better than anything deeper
                could be. None for the whole supertree.
        """
        ...

"""Growing a whole tree at once, for everyone who does not watch it grow."""

from __future__ import annotations

from torch import Tensor

from dartree_core.config import Method, TreeConfig
from dartree_core.draft.builders import BUILDERS
from dartree_core.draft.cache import DraftCache
from dartree_core.draft.drafter import BlockDraft, Drafter
from dartree_core.draft.packing import hosted
from dartree_core.draft.static import RECORDABLE
from dartree_core.draft.supertree import Supertree, finish


def grow(
    drafter: Drafter,
    method: Method,
    block: BlockDraft,
    root: Tensor,
    cache: DraftCache,
    tree: TreeConfig,
    depth: int,
    enough: int | None = None,
) -> Supertree:
    """The tree that `method` grows on a block, on the host.

    Drafters with static shapes grow it in one launch where the method can be recorded. Either
    way the host waits for the device once, when the tree is complete.

    Args:
        drafter: Who drafted the block.
        method: A drafting method.
        block: Marginals, perhaps coupled.
        root: int64 `[1]`, the last committed token.
        cache: The conversation's draft cache.
        tree: Settings.
        depth: Deepest node wanted, at most `block.num_slots`.
        enough: See `Builder`; used where a look at the scores costs nothing.
    """
    if drafter.static and drafter.static.owns(cache) and method in RECORDABLE:
        grown = drafter.static.grow(method, block, cache, tree, depth)
        if grown is not None:
            return grown
    if drafter.growth and drafter.growth.grows(method, block):
        return drafter.growth.grow(method, block, root, tree, depth, enough)
    at = root.to(block.hidden.device)
    if at.device.type != "cpu":
        enough = None
    steps = BUILDERS[method](block, drafter.head, at, drafter.target.embed, tree, depth, enough)
    return hosted(finish(steps))

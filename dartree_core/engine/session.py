"""One conversation's state on the device: caches of target and drafter, and what they hold."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dartree_core.config import TreeConfig
from dartree_core.draft.drafter import BlockDraft, DraftCache, Drafter
from dartree_core.draft.lookup import SuffixIndex
from dartree_core.engine.pending import Pending
from dartree_core.glances import StepByStep, Watcher
from dartree_core.models.kv_cache import KVCache
from dartree_core.models.target import Target


class Session:
    """Caches for a conversation, consistent at every moment a generator may be left.

    `ids` are the tokens whose keys and values the target holds. The drafter's context covers the
    first `draft_cache.length` of them, then come `pending` features not yet encoded. Plain turns
    read no features, so the drafter may know less than the target.

    Attributes:
        turn: Turns started so far.
        lookup: Where the text has been before, for rounds that graft; they bring it up to date.
        watcher: Who follows rounds; where settings want stages told, those of other rounds are not.
    """

    def __init__(self, target: Target, drafter: Drafter | None) -> None:
        self.target = target
        self.drafter = drafter
        self.cache: KVCache = target.new_cache()
        self.draft_cache: DraftCache | None = drafter.new_cache() if drafter else None
        self.ids: list[int] = []
        self.pending = Pending()
        self.turn = 0
        self.lookup = SuffixIndex()
        self.watcher: Watcher = StepByStep()
        self._cancelled = False
        self._retuned: TreeConfig | None = None

    def cancel(self) -> None:
        """End the running turn at its next event. Safe from any thread or signal handler."""
        self._cancelled = True

    @property
    def cancelled(self) -> bool:
        """True from `cancel` until the next turn is asked for."""
        return self._cancelled

    def arm(self) -> None:
        """A turn was asked for: `cancel` and `retune` are about it from now on."""
        self._cancelled = False
        self._retuned = None

    def retune(self, tree: TreeConfig) -> None:
        """Use other tree settings from the next round on. Safe from any thread.

        Raises:
            ConfigError: The drafter was trained for shorter blocks.
        """
        if self.drafter is not None:
            self.drafter.block_size(tree.block_size)
        self._retuned = tree

    def take_retuned(self) -> TreeConfig | None:
        """Settings given to `retune` since the last call."""
        tree, self._retuned = self._retuned, None
        return tree

    def begin(self, prompt: Sequence[int], *, drafting: bool) -> int:
        """Start a turn: keep what the caches share with `prompt`, forget the rest.

        The last prompt token is always decoded again, for its logits. A drafting turn can only
        reuse positions whose features the drafter has as well.

        Returns:
            The number of reused positions.
        """
        shared = 0
        for ours, theirs in zip(self.ids, prompt[:-1], strict=False):
            if ours != theirs:
                break
            shared += 1
        if drafting:
            shared = min(shared, self._covered())
        self.crop(shared)
        self.turn += 1
        return shared

    def commit(self, tokens: Sequence[int], rows: Tensor, features: Tensor | None) -> None:
        """Make rows of the last target pass part of the context.

        Args:
            tokens: Ids of the rows.
            rows: int64 `[m]`, row offsets in path order.
            features: `[rows of the pass, layers * H]`, or None in a plain turn.
        """
        continuous = self._covered() == len(self.ids)
        self.cache.commit(rows)
        self.ids.extend(tokens)
        if features is not None and continuous:
            self.pending.append(features.index_select(0, rows))

    def encode_pending(self) -> None:
        """Bring the drafter's context up to date with the target's."""
        waiting = self.pending.joined
        if self.drafter is not None and self.draft_cache is not None and waiting is not None:
            self.drafter.extend(waiting, self.draft_cache)
            self.pending.clear()

    def draft(self, root: Tensor, block_size: int | None) -> BlockDraft:
        """A block behind everything committed, whether the drafter has read it yet or not.

        Args:
            root: int64 `[1]`, the last emitted token.
            block_size: As in `Drafter.draft`.
        """
        assert self.drafter is not None
        assert self.draft_cache is not None
        waiting = self.pending.joined
        if waiting is not None and not self.drafter.merges(waiting, self.draft_cache):
            self.encode_pending()
        block = self.drafter.draft(root, self.draft_cache, block_size, self.pending.joined)
        self.pending.clear()
        return block

    def crop(self, length: int) -> None:
        """Forget all positions from `length` on, in both caches."""
        self.cache.crop(length)
        del self.ids[length:]
        if self.draft_cache is None:
            return
        known = self.draft_cache.length
        self.pending.crop(length - known)
        self.draft_cache.crop(length)

    def _covered(self) -> int:
        """Positions whose features the drafter has, encoded or pending."""
        if self.draft_cache is None:
            return 0
        return self.draft_cache.length + len(self.pending)

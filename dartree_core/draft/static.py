"""Drafting in fixed shapes: context, blocks and whole trees as bodies that can be recorded.

The counterpart of `models.static` for the drafter. A tree is grown by the ordinary builders: all
their shapes follow from settings and depth, so one recording is a round's whole drafting, with
every call of the correction head in it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dartree_core.config import Method, TreeConfig
from dartree_core.draft.builders import BUILDERS
from dartree_core.draft.cache import DraftCache
from dartree_core.draft.dflash import DraftLayer
from dartree_core.draft.drafter import BlockDraft, Drafter
from dartree_core.draft.packing import Layout, pack
from dartree_core.draft.supertree import Supertree, finish
from dartree_core.models.arena import Shelf
from dartree_core.models.buckets import MOST_ROWS, arena_length, length_bucket, row_bucket
from dartree_core.models.fused import Fused
from dartree_core.models.graphs import Graphs, Tape
from dartree_core.models.host import Download, Upload
from dartree_core.models.lean import LeanTarget

RECORDABLE: frozenset[Method] = frozenset({"dflash", "domino", "dartree", "dartree-fixed"})
"""Methods that grow a tree without asking the host."""


class Block:
    """Inputs and results of blocks of one size.

    Attributes:
        length, root: int64 `[1]`, committed positions and the token behind them.
        offsets: int64 `[size]`, 0, 1, ...
        everywhere, causal: bool `[size, size]`, who sees whom within a block.
        hidden, logits: As in `BlockDraft`, the drafter's own.
        ranked, scale: What a coupled draft ranks by instead, float32 `[K, Vd]` and `[]`.
        trees: By how they are grown, their layout and a packed tree's buffer.
    """

    def __init__(self, drafter: Drafter, size: int) -> None:
        device, slots = drafter.target.device, drafter.spec.num_slots(size)
        self._numbers = Upload(2, torch.int64, device)
        self.length, self.root = torch.split(self._numbers.there, 1)
        self.offsets = torch.arange(size, device=device)
        self.everywhere = torch.ones(size, size, dtype=torch.bool, device=device)
        self.causal = self.everywhere.tril()
        self.hidden = torch.zeros(
            slots, drafter.target.hidden_size, dtype=drafter.target.dtype, device=device
        )
        self.logits = torch.zeros(slots, drafter.vocabulary.size, device=device)
        self.ranked = self.logits[:0]
        self.scale = torch.ones((), device=device)
        self.trees: dict[Any, tuple[Layout, Tensor]] = {}

    def fill(self, length: int, root: Tensor) -> None:
        """Set the inputs; a root on the host travels with the length."""
        if root.device.type == "cpu":
            numbers = self._numbers.open()
            numbers[0] = length
            numbers[1:] = root
            self._numbers.send()
        else:
            self.length.fill_(length)
            self.root.copy_(root)


class DraftArena:
    """Everything with a fixed address that one conversation's drafts use.

    Attributes:
        data: Keys and values `[layers, 2, kv_heads, capacity, D]`, finite everywhere.
        columns: int64 `[capacity]`, 0, 1, ...
        length: int64 `[1]`, positions committed before an extension.
    """

    def __init__(self, drafter: Drafter, capacity: int) -> None:
        spec, target = drafter.spec, drafter.target
        self._drafter = drafter
        self.data = torch.zeros(
            (spec.num_layers, 2, spec.num_kv_heads, capacity, spec.head_dim),
            dtype=target.dtype,
            device=target.device,
        )
        self.columns = torch.arange(capacity, device=target.device)
        self.length = Upload(1, torch.int64, target.device)
        self.tape = Tape()
        self._blocks: dict[int, Block] = {}
        self._features: dict[int, Tensor] = {}

    @property
    def capacity(self) -> int:
        """Positions there is room for."""
        return self.data.shape[3]

    @property
    def nbytes(self) -> int:
        """Bytes of its keys and values."""
        return self.data.nbytes

    def block(self, size: int) -> Block:
        """Buffers of blocks of `size` tokens."""
        if size not in self._blocks:
            self._blocks[size] = Block(self._drafter, size)
        return self._blocks[size]

    def features(self, count: int) -> Tensor:
        """The buffer for context features of `count` positions."""
        if count not in self._features:
            width = len(self._drafter.taps) * self._drafter.target.hidden_size
            self._features[count] = self.data.new_zeros(count, width)
        return self._features[count]


class StaticDraftCache(DraftCache):
    """A `DraftCache` whose tensors do not move while their arena is large enough."""

    def __init__(self, num_layers: int, shelf: Shelf[DraftArena]) -> None:
        super().__init__(num_layers)
        self._shelf = shelf
        self._lease = shelf.lease(self)

    @property
    def arena(self) -> DraftArena:
        """Where this conversation's drafts run; `reserve` may replace it."""
        return self._lease.require(0)

    @property
    def capacity(self) -> int:
        """See `DraftCache.capacity`."""
        return self._lease.arena.capacity if self._lease.arena else 0

    @property
    def nbytes(self) -> int:
        """See `DraftCache.nbytes`."""
        return self._lease.arena.nbytes if self._lease.arena else 0

    @property
    def idle(self) -> DraftArena | None:
        """See `DraftCache.idle`."""
        return self._shelf.idle

    def belongs_to(self, shelf: Shelf[DraftArena]) -> bool:
        """True when `shelf` lends this cache its arena."""
        return self._shelf is shelf

    def reserve(self, capacity: int) -> None:
        """Make room for `capacity` positions; committed ones stay."""
        old = self._lease.arena
        if old is not None and capacity <= old.capacity:
            return
        arena = self._lease.require(arena_length(capacity))
        if old is not None:
            arena.data[..., : self.length, :] = old.data[..., : self.length, :]

    def room(self, like: Tensor, end: int) -> Tensor:
        """See `DraftCache.room`."""
        self.reserve(end)
        return self.arena.data

    def context(self) -> list[tuple[Tensor, Tensor]]:
        """See `DraftCache.context`."""
        return [(k[:, : self.length], v[:, : self.length]) for k, v in self.arena.data]


class StaticDrafts:
    """Drafts of one drafter.

    Args:
        drafter: Whose layers and head run.
        graphs: Runs the bodies.
        fused: Kernels for what lies between products; by default the target's, where they
            compute what this drafter does.
    """

    def __init__(self, drafter: Drafter, graphs: Graphs, fused: Fused | None = None) -> None:
        self.graphs = graphs
        self._drafter = drafter
        self._download = Download()
        self._shelf: Shelf[DraftArena] = Shelf(self._make, graphs)
        self._fused = fused or self._kernels()
        # Stale rows stay in reach of padding, where nothing times infinity is not nothing.
        self._overflows = drafter.target.dtype == torch.float16

    def new_cache(self) -> StaticDraftCache:
        """An empty cache for one sequence."""
        return StaticDraftCache(self._drafter.spec.num_layers, self._shelf)

    def owns(self, cache: DraftCache) -> bool:
        """True for caches from `new_cache`."""
        return isinstance(cache, StaticDraftCache) and cache.belongs_to(self._shelf)

    @torch.inference_mode()
    def _make(self, capacity: int) -> DraftArena:
        return DraftArena(self._drafter, capacity)

    def extend(self, features: Tensor, cache: DraftCache) -> bool:
        """Commit context features; False where they are too many, and nothing was done."""
        assert isinstance(cache, StaticDraftCache)
        n = len(features)
        if n > MOST_ROWS:
            return False
        count = row_bucket(n)
        cache.reserve(cache.length + count)
        arena = cache.arena
        self._reserve_rope(arena)
        arena.length.open()[0] = cache.length
        arena.length.send()
        buffer = arena.features(count)
        buffer[:n].copy_(features)
        self.graphs.run(
            arena.tape, "context", count, lambda: self._extend(arena, buffer, arena.length.there)
        )
        cache.length += n
        return True

    def _extend(self, arena: DraftArena, features: Tensor, length: Tensor) -> None:
        """Body: keys and values of features go behind the committed ones, padding last."""
        at = length + arena.columns[: len(features)]
        new = self._drafter.backbone.context_keys_values(features, at)
        for layer, pair in zip(arena.data, new, strict=True):
            for held, part in zip(layer, pair, strict=True):
                held.index_copy_(1, at, part.nan_to_num() if self._overflows else part)

    def draft(self, root: Tensor, cache: DraftCache, size: int) -> BlockDraft:
        """See `Drafter.draft`; the result is valid until the conversation's next draft."""
        assert isinstance(cache, StaticDraftCache)
        span = length_bucket(cache.length)
        cache.reserve(max(span, cache.length + size))
        if self._fused is not None:
            span = 0  # fused attention reads the length
        arena = cache.arena
        self._reserve_rope(arena)
        block = arena.block(size)
        block.fill(cache.length, root)
        self.graphs.run(arena.tape, "block", (size, span), lambda: self._draft(arena, block, span))
        return BlockDraft(block.hidden, block.logits, self._drafter.vocabulary)

    def _draft(self, arena: DraftArena, block: Block, span: int) -> None:
        """Body: one pass of the backbone over a block."""
        positions = block.length + block.offsets
        if self._fused is not None:
            hidden = self._fused_pass(self._fused, arena, block, positions)
            rows, logits = self._drafter.conclude(hidden)
            block.hidden.copy_(rows)
            block.logits.copy_(logits)
            return
        columns = arena.columns[:span]
        keys = torch.cat((columns, positions))
        real = torch.cat((columns < block.length, torch.ones_like(positions, dtype=torch.bool)))
        context = [(k[:, :span], v[:, :span]) for k, v in arena.data]
        hidden, logits = self._drafter.marginals(block.root, positions, context, keys, real)
        block.hidden.copy_(hidden)
        block.logits.copy_(logits)

    def _fused_pass(
        self, fused: Fused, arena: DraftArena, block: Block, positions: Tensor
    ) -> Tensor:
        """Final-normed rows `[n, H]` of a block, whose keys and values stay behind the context
        until they are overwritten."""
        drafter, eps = self._drafter, self._drafter.spec.rms_eps
        rope = drafter.backbone.rope
        x, delta = drafter.embed_block(block.root, len(positions)), None
        for i, layer in enumerate(drafter.backbone.layers):
            assert isinstance(layer, DraftLayer)
            attention, mlp = layer.self_attn, layer.mlp
            x, h = fused.add_norm(x, delta, layer.input_layernorm.weight, eps)
            parts = (attention.q_proj(h), attention.k_proj(h), attention.v_proj(h))
            attended = fused.attend(
                (attention.q_norm.weight, attention.k_norm.weight),
                torch.cat(parts, dim=-1),
                arena.data[i],
                (rope.cos, rope.sin),
                positions,
                block.length,
                block.causal if drafter.spec.causal[i] else block.everywhere,
            )
            delta = attention.o_proj(attended)
            x, h = fused.add_norm(x, delta, layer.post_attention_layernorm.weight, eps)
            gate_up = torch.cat((mlp.gate_proj(h), mlp.up_proj(h)), dim=-1)
            delta = mlp.down_proj(fused.gated(gate_up))
        return fused.add_norm(x, delta, drafter.backbone.norm.weight, eps)[1]

    def _kernels(self) -> Fused | None:
        """The target's kernels for this drafter's shape; none for what they do not compute."""
        spec, target = self._drafter.spec, self._drafter.target
        known = target.fused if isinstance(target, LeanTarget) else None
        if known is None or spec.conv_taps or any(w is not None for w in spec.windows):
            return None
        return known.resized(spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.rms_eps)

    @torch.inference_mode()
    def grow(
        self, method: Method, draft: BlockDraft, cache: DraftCache, tree: TreeConfig, depth: int
    ) -> Supertree | None:
        """The tree a method grows on the last draft, on the host; None where it cannot be had.

        What is grown for the first time, and perhaps the last, is not recorded.

        Args:
            method: One of `RECORDABLE`.
            draft: What `draft` gave, perhaps with other logits and scale.
            cache: The conversation's.
            tree: Settings.
            depth: Deepest node wanted.
        """
        assert isinstance(cache, StaticDraftCache)
        arena = cache.arena
        size = draft.num_slots + (0 if self._drafter.spec.shift_label else 1)
        block = arena.block(size)
        if draft.hidden is not block.hidden:
            return None
        coupled = draft.base_logits is not block.logits
        if coupled:
            if not len(block.ranked):
                block.ranked = torch.zeros_like(block.logits)
            block.ranked.copy_(draft.base_logits)
            block.scale.fill_(draft.scale)
        shape = (size, method, tree, depth, coupled)
        if shape not in block.trees:
            grown = self.build(block, method, tree, depth, coupled=coupled)
            packed = pack(grown)
            block.trees[shape] = (Layout.of(grown), packed)
        else:
            _, packed = block.trees[shape]
            self.graphs.run(
                arena.tape,
                "tree",
                shape,
                lambda: packed.copy_(pack(self.build(block, method, tree, depth, coupled=coupled))),
            )
        layout, packed = block.trees[shape]
        return layout.unpack(self._download.fetch(packed))

    def build(
        self, block: Block, method: Method, tree: TreeConfig, depth: int, *, coupled: bool
    ) -> Supertree:
        """Body, but for its result: the tree of a drafted block, on the device."""
        drafter = self._drafter
        draft = BlockDraft(block.hidden, block.logits, drafter.vocabulary)
        if coupled:
            draft = BlockDraft(block.hidden, block.ranked, drafter.vocabulary, block.scale)
        build = BUILDERS[method]
        return finish(build(draft, drafter.head, block.root, drafter.target.embed, tree, depth))

    def _reserve_rope(self, arena: DraftArena) -> None:
        """Rotary tables for the whole arena; recordings keep those that they read."""
        rope, target = self._drafter.backbone.rope, self._drafter.target
        rope.reserve(arena.capacity + self._drafter.spec.block_size, target.device, target.dtype)
        arena.tape.hold(rope.cos, rope.sin)

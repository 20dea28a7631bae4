"""Passes of the lean target in fixed shapes, so that each can be recorded once and replayed.

A pass over n rows is padded to a bucket of rows, and its attention to a bucket of cached
positions; what differs between two passes of a bucket (tokens, positions, who sees whom, how much
is cached) is read from buffers. Padding rows see themselves, are seen by nobody, and leave their
keys and values behind the real ones, where the next pass overwrites them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dartree_core.models.arena import Shelf
from dartree_core.models.arithmetic import Arithmetic
from dartree_core.models.buckets import MOST_ROWS, arena_length, length_bucket, row_bucket
from dartree_core.models.fused import Fused, fused_for
from dartree_core.models.graphs import Graphs, Tape
from dartree_core.models.host import Upload
from dartree_core.models.lean_cache import LeanCache
from dartree_core.models.target import TargetOutput

if TYPE_CHECKING:
    from dartree_core.models.lean import Layer, LeanTarget

    Attend = Callable[[int, Layer, Tensor], Tensor]


class Rows:
    """Inputs and results of passes padded to `count` rows.

    Attributes:
        length: int64 `[1]`, committed positions.
        tokens, positions: int64 `[count]`.
        visible: bool `[count, count]`; padding rows see themselves alone.
        chain: bool `[count, count]`, the rows of a plain chain.
        offsets: int64 `[count]`, 0, 1, ...
        logits: float32 `[count, V]`.
        choice: int64 `[count]`, each row's argmax.
        features: By taps, `[count, taps * H]`.
    """

    def __init__(self, count: int, target: LeanTarget) -> None:
        device = target.device
        self.count = count
        self._numbers = Upload(1 + 2 * count, torch.int64, device)
        self._seen = Upload(count * count, torch.bool, device)
        parts = torch.split(self._numbers.there, [1, count, count])
        self.length, self.tokens, self.positions = parts
        self.visible = self._seen.there.view(count, count)
        self.offsets = torch.arange(count, device=device)
        self.chain = torch.ones_like(self.visible).tril()
        self.logits = torch.zeros(count, target.vocab_size, device=device)
        self.choice = torch.zeros_like(self.tokens)
        self.features: dict[tuple[int, ...], Tensor] = {}

    def fill(
        self, start: int, tokens: Tensor, positions: Tensor | None, visible: Tensor | None
    ) -> None:
        """Set the inputs of a pass over `n` rows.

        Inputs on the host travel in one copy, or two with `visible`, that nobody waits for;
        inputs on the device stay there.

        Args:
            start: Committed positions.
            tokens: int64 `[n]`.
            positions: int64 `[n]`, or None for a chain behind the committed positions.
            visible: bool `[n, n]`, or None for a chain.
        """
        n = len(tokens)
        if tokens.device.type == "cpu":
            numbers = self._numbers.open()
            numbers[0] = start
            numbers[1 : 1 + n] = tokens
            if positions is not None:
                numbers[1 + self.count : 1 + self.count + n] = positions
            self._numbers.send()
        else:
            self.length.fill_(start)
            self.tokens[:n].copy_(tokens)
            if positions is not None:
                self.positions[:n].copy_(positions)
        if visible is None:
            return
        if visible.device.type == "cpu":
            seen = self._seen.open().view(self.count, self.count)
            seen.fill_(False).fill_diagonal_(True)
            seen[:n, :n] = visible
            self._seen.send()
        else:
            self.visible.fill_(False).fill_diagonal_(True)
            self.visible[:n, :n].copy_(visible)

    def features_of(self, taps: tuple[int, ...], target: LeanTarget) -> Tensor:
        """The buffer for outputs of these layers."""
        if taps not in self.features:
            width = len(taps) * target.hidden_size
            self.features[taps] = torch.zeros(
                self.count, width, dtype=target.dtype, device=target.device
            )
        return self.features[taps]


class Arena:
    """Everything with a fixed address that one conversation's passes use.

    Attributes:
        data: As `LeanCache.data`; finite everywhere, since padding reads what nobody wrote.
        cos, sin: Rotary factors of all its positions, `[capacity, D]`.
        columns: int64 `[capacity]`, 0, 1, ...
    """

    def __init__(self, target: LeanTarget, capacity: int) -> None:
        shape = (target.num_layers, 2, target.kv_heads, capacity, target.head_dim)
        self.data = torch.zeros(shape, dtype=target.dtype, device=target.device)
        self.cos, self.sin = target.rope_tables(capacity)
        self.columns = torch.arange(capacity, device=target.device)
        self.tape = Tape()
        self._target = target
        self._rows: dict[int, Rows] = {}

    @property
    def capacity(self) -> int:
        """Positions there is room for."""
        return self.data.shape[3]

    @property
    def nbytes(self) -> int:
        """Bytes of its keys and values."""
        return self.data.nbytes

    def rows(self, count: int) -> Rows:
        """Buffers of passes padded to `count` rows."""
        if count not in self._rows:
            self._rows[count] = Rows(count, self._target)
        return self._rows[count]


class StaticCache(LeanCache):
    """A `LeanCache` whose tensor never moves while its arena is large enough."""

    def __init__(self, target: LeanTarget, shelf: Shelf[Arena]) -> None:
        shape = (target.num_layers, target.kv_heads, target.head_dim)
        super().__init__(shape, target.dtype, target.device)
        self._shelf = shelf
        self._lease = shelf.lease(self)

    @property
    def arena(self) -> Arena:
        """Where this conversation's passes run; `reserve` may replace it."""
        return self._lease.require(0)

    @property
    def idle(self) -> Arena | None:
        """See `LeanCache.idle`."""
        return self._shelf.idle

    def belongs_to(self, shelf: Shelf[Arena]) -> bool:
        """True when `shelf` lends this cache its arena."""
        return self._shelf is shelf

    def reserve(self, capacity: int) -> None:
        """Make room for `capacity` positions; committed rows stay."""
        if capacity <= self.capacity:
            return
        # Twice the need: an arena that is outgrown takes its recordings with it.
        arena = self._lease.require(arena_length(capacity))
        arena.data[..., : self.length, :] = self.data[..., : self.length, :]
        self.data = arena.data


class StaticPasses:
    """Short passes of one target.

    Args:
        target: Whose layers run.
        graphs: Runs the bodies.
        fused: Kernels for what lies between products; by default those that fit the device.
    """

    def __init__(self, target: LeanTarget, graphs: Graphs, fused: Fused | None = None) -> None:
        self.graphs = graphs
        self.fused = fused or fused_for(target)
        self._arithmetic = self.fused or Arithmetic()
        self._target = target
        self._group = target.num_heads // target.kv_heads
        # Rejected rows stay in reach of padding, where nothing times infinity is not nothing.
        self._overflows = target.dtype == torch.float16
        self._shelf: Shelf[Arena] = Shelf(self._make, graphs)

    @property
    def facts(self) -> tuple[str, ...]:
        """How passes run, for display."""
        return tuple(filter(None, (self._arithmetic.name, str(self.graphs))))

    def new_cache(self) -> StaticCache:
        """An empty cache for one sequence."""
        return StaticCache(self._target, self._shelf)

    def owns(self, cache: LeanCache) -> bool:
        """True for caches from `new_cache`."""
        return isinstance(cache, StaticCache) and cache.belongs_to(self._shelf)

    @torch.inference_mode()
    def _make(self, capacity: int) -> Arena:
        return Arena(self._target, capacity)

    def forward(
        self,
        tokens: Tensor,
        cache: LeanCache,
        positions: Tensor | None,
        visible: Tensor | None,
        taps: tuple[int, ...],
        *,
        last_only: bool,
    ) -> TargetOutput:
        """See `Target.forward`; at most `MOST_ROWS` rows, on a cache of `new_cache`."""
        assert isinstance(cache, StaticCache)
        n, start = len(tokens), cache.length
        count = row_bucket(n)
        assert count <= MOST_ROWS
        cache.reserve(start + count)
        arena = cache.arena
        rows = arena.rows(count)
        chain = positions is None and visible is None
        if not chain and positions is None:
            positions = torch.arange(start, start + n, device=tokens.device)
        if not chain and visible is None:
            visible = torch.ones(n, n, dtype=torch.bool, device=tokens.device).tril()
        rows.fill(start, tokens, positions, visible)
        # Fused attention reads the length; a span would only make more recordings.
        span = 0 if self.fused else min(length_bucket(start + count), arena.capacity)
        out = rows.features_of(taps, self._target) if taps else None
        self.graphs.run(
            arena.tape,
            "pass",
            (count, span, chain, taps),
            lambda: self._pass(arena, rows, span, chain, taps, out),
        )
        first = n - 1 if last_only else 0
        return TargetOutput(
            logits=rows.logits[first:n],
            features=None if out is None else out[:n],
            choice=rows.choice[first:n],
        )

    def _pass(
        self,
        arena: Arena,
        rows: Rows,
        span: int,
        chain: bool,
        taps: tuple[int, ...],
        features: Tensor | None,
    ) -> None:
        """The body: see `graphs` for what it may do."""
        target = self._target
        prepare = self._fused_attention if self.fused else self._plain_attention
        attend = prepare(arena, rows, span, chain)
        x, tapped = target.decode(target.embed(rows.tokens), attend, taps, self._arithmetic)
        if features is not None and tapped is not None:
            features.copy_(tapped)
        rows.logits.copy_(target.project(x))
        torch.argmax(rows.logits, dim=-1, out=rows.choice)

    def _fused_attention(self, arena: Arena, rows: Rows, span: int, chain: bool) -> Attend:
        """Kernels that read how much is cached and who sees whom for themselves."""
        fused = self.fused
        assert fused is not None
        tables = (arena.cos, arena.sin)
        positions = rows.length + rows.offsets if chain else rows.positions
        visible = rows.chain if chain else rows.visible

        def attend(index: int, layer: Layer, qkv: Tensor) -> Tensor:
            data = arena.data[index]
            return fused.attend(layer.norms, qkv, data, tables, positions, rows.length, visible)

        return attend

    def _plain_attention(self, arena: Arena, rows: Rows, span: int, chain: bool) -> Attend:
        """PyTorch's attention over `span` positions under a mask."""
        target = self._target
        at = rows.length + rows.offsets
        positions = at if chain else rows.positions
        cos, sin = arena.cos[positions], arena.sin[positions]
        mask = self._mask(rows, arena.columns[:span], chain)

        def attend(index: int, layer: Layer, qkv: Tensor) -> Tensor:
            q, k, v = target.heads(layer, qkv, cos, sin)
            if self._overflows:
                k, v = k.nan_to_num(), v.nan_to_num()
            keys, values = arena.data[index]
            keys.index_copy_(1, at, k)
            values.index_copy_(1, at, v)
            return target.attention(q, keys[:, :span], values[:, :span], mask)

        return attend

    def _mask(self, rows: Rows, columns: Tensor, chain: bool) -> Tensor:
        """Additive `[group * count, span]`: what is committed, then who sees whom, then nothing.

        Additive, and made once: attention kernels would convert a boolean mask in every layer.
        """
        count, visible = rows.count, rows.chain if chain else rows.visible
        behind = columns - rows.length
        own = visible[:, behind.clamp(0, count - 1)] & (behind >= 0) & (behind < count)
        seen = own | (behind < 0)
        mask = torch.zeros(seen.shape, dtype=self._target.dtype, device=seen.device)
        mask.masked_fill_(~seen, float("-inf"))
        return mask.repeat(self._group, 1)

"""A drafter bound to its target: from committed context and a root to a block of marginals."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dartree_core import compiled
from dartree_core.compiled.arrays import Array, array
from dartree_core.draft.cache import DraftCache
from dartree_core.draft.checkpoint import DraftCheckpoint, read_checkpoint
from dartree_core.draft.heads import CorrectionHead
from dartree_core.draft.lean import MOST_NEW, LeanBackbone, supports
from dartree_core.draft.rounding import DraftKernels, choose
from dartree_core.draft.tables import output_table, own_embedding
from dartree_core.draft.vocabulary import DraftVocabulary
from dartree_core.errors import CheckpointError, ConfigError
from dartree_core.models import kernels
from dartree_core.models.memory import Memory
from dartree_core.models.target import Target

if TYPE_CHECKING:
    from dartree_core.draft.builders.compiled import CompiledGrowth
    from dartree_core.draft.static import StaticDrafts
    from dartree_core.models.graphs import Graphs

__all__ = ["BlockDraft", "DraftCache", "Drafter", "load_drafter"]


@dataclass(slots=True)
class BlockDraft:
    """What one drafter pass says about the next tokens.

    Attributes:
        hidden: `[K, H]`, the slots' final hidden states.
        base_logits: float32 `[K, Vd]`, marginal logits over the drafter's vocabulary.
        vocabulary: Maps the drafter's rows to target ids.
        scale: What a head's correction is multiplied with before it is added: 1, or with
            coupled drafting one over the temperature that `base_logits` were divided by. A
            tensor `[]` where a recording reads it.
    """

    hidden: Tensor
    base_logits: Tensor
    vocabulary: DraftVocabulary
    scale: float | Tensor = 1.0

    @property
    def num_slots(self) -> int:
        """K, the deepest a tree on this block can get."""
        return len(self.hidden)


class Drafter:
    """Backbone, head and vocabulary, with the target's embedding and output tables.

    Args:
        checkpoint: As read from disk.
        target: The model it was trained for.
        label: Name shown to users.
        lean: Hand the backbone's products to the target's kernels; its weights cannot be read
            any more then.
        memory: Where kernel measurements are kept.
        rounded: With `lean`, let products round where that is faster, see `draft.rounding`.

    Raises:
        CheckpointError: Shapes say that the drafter belongs to another target.

    Attributes:
        kernels: What the products run on.
        growth: Grows trees in compiled code, after `compile`; None where builders have to.
    """

    def __init__(
        self,
        checkpoint: DraftCheckpoint,
        target: Target,
        *,
        label: str = "",
        lean: bool = False,
        memory: Memory | None = None,
        rounded: bool = False,
    ) -> None:
        spec = checkpoint.spec
        _check_match(checkpoint, target)
        self.spec = spec
        self.label = label or checkpoint.path.name
        self.target = target
        self.backbone = checkpoint.backbone.to(target.device, target.dtype)
        ids = checkpoint.vocab_ids
        self.vocabulary = DraftVocabulary.from_checkpoint(
            None if ids is None else ids.to(target.device),
            spec.draft_vocab_size,
            target.vocab_size,
        )
        borrowed = self.vocabulary.select(target.output_weight)
        table = output_table(checkpoint.output, borrowed)
        self._lean: LeanBackbone | None = None
        self.kernels = DraftKernels()
        if lean:
            typical = table[: kernels.TYPICAL]
            self.kernels = choose(
                target, typical, spec.block_size, memory or Memory(), rounded=rounded
            )
            if target.device.type == "cpu" and supports(spec):
                self._lean = LeanBackbone(self.backbone, self.kernels)
            else:
                kernels.pack(self.backbone, self.kernels.context)
        self.head: CorrectionHead = checkpoint.head.to(target.device, target.dtype)
        self._output = kernels.named(self.kernels.block)(table, None)
        self._embedding = own_embedding(checkpoint.embedding, target.embedding.weight)
        self._mask = torch.tensor([spec.mask_token_id], device=target.device)
        self._table: Array | None = None
        # Whether some layer slides or looks only backwards.
        self._masked = any(spec.causal) or any(w is not None for w in spec.windows)
        if lean:
            with torch.inference_mode():
                ids = self.vocabulary.target_ids(target.device)
                self.head = self.head.lean(ids, target.embed, self.kernels.block)
        self.growth: CompiledGrowth | None = None
        self.static: StaticDrafts | None = None
        if target.graphs is not None:
            self.use_static(target.graphs)

    def use_static(self, graphs: Graphs | None) -> None:
        """As `LeanTarget.use_static`, for drafts."""
        from dartree_core.draft.static import StaticDrafts

        self.static = StaticDrafts(self, graphs) if graphs else None

    @property
    def path(self) -> str:
        """What drafts run on, for people and for what is remembered of their costs."""
        in_code = self.growth is not None or (self._lean is not None and self._lean.compiled)
        return ", ".join((self.kernels.block, *(["compiled"] if in_code else [])))

    def compile(self) -> None:
        """Have what can be compiled for this CPU compiled; some seconds, once on a machine."""
        if self._lean is not None:
            self._lean.compile(self._output)
            self._table = self._plain_table()
        if compiled.fits(self.backbone.norm.weight) and compiled.shares():
            from dartree_core.draft.builders.compiled import CompiledGrowth, supports

            if supports(self.head):
                self.growth = CompiledGrowth(
                    self.head,
                    self.vocabulary,
                    self.target.embed,
                    rounded=self.kernels.block in kernels.ROUNDING,
                )

    def _plain_table(self) -> Array | None:
        """The table that `_embed` looks tokens up in, where it does nothing else."""
        table = self.target.embedding.weight if self._embedding is None else self._embedding
        looked_up = self._embedding is not None or type(self.target.embedding) is nn.Embedding
        plain = looked_up and self.spec.embedding_scale is None
        return array(table) if plain and compiled.fits(table) else None

    @property
    def taps(self) -> tuple[int, ...]:
        """Target layers whose outputs are the context feature."""
        return self.spec.target_layer_ids

    def new_cache(self) -> DraftCache:
        """An empty cache for one sequence."""
        return self.static.new_cache() if self.static else DraftCache(self.spec.num_layers)

    @torch.inference_mode()
    def extend(self, features: Tensor, cache: DraftCache) -> None:
        """Commit context features `[t, layers * H]` of the next `t` positions."""
        if self.static and self.static.owns(cache) and self.static.extend(features, cache):
            return
        end = cache.length + len(features)
        self.backbone.rope.reserve(end, features.device, features.dtype)
        if self._lean is not None:
            self._lean.extend(features, cache)
            return
        positions = torch.arange(cache.length, end, device=features.device)
        cache.append(self.backbone.context_keys_values(features, positions))

    def merges(self, features: Tensor, cache: DraftCache) -> bool:
        """True when `draft` can commit these features along with its block."""
        static = self.static is not None and self.static.owns(cache)
        return self._lean is not None and not static and len(features) <= MOST_NEW

    @torch.inference_mode()
    def draft(
        self,
        root: Tensor,
        cache: DraftCache,
        block_size: int | None = None,
        new: Tensor | None = None,
    ) -> BlockDraft:
        """Marginals of the tokens after `root`, which sits right behind the context.

        Args:
            root: int64 `[1]`, the last committed token, not yet in the cache.
            cache: Context features of all earlier positions.
            block_size: Smaller than the drafter's own, to look less far.
            new: `[t, layers * H]`, features of positions between the cache and the root, to be
                committed by the same pass if it succeeds; only what `merges` may come this way.

        Raises:
            ConfigError: The block is larger than the drafter was trained for.
        """
        size = self.block_size(block_size)
        if self.static and self.static.owns(cache):
            return self.static.draft(root, cache, size)
        root = root.to(self.target.device)
        end = cache.length + (0 if new is None else len(new))
        self.backbone.rope.reserve(end + size, root.device, self.target.dtype)
        if self._lean is not None:
            masks = None
            if self._masked:
                keys = torch.arange(end + size, device=root.device)
                masks = self._masks(keys[end:], keys, None)
            asked = size if self.spec.shift_label else size - 1
            x = self.embed_block(root, size)
            rows, logits = self._lean(x, cache, new, masks, asked)
            return BlockDraft(*self.conclude(rows, logits), self.vocabulary)
        assert new is None
        keys = torch.arange(end + size, device=root.device)
        hidden, logits = self.marginals(root, keys[cache.length :], cache.context(), keys)
        return BlockDraft(hidden, logits, self.vocabulary)

    def marginals(
        self,
        root: Tensor,
        positions: Tensor,
        context: list[tuple[Tensor, Tensor]],
        keys: Tensor,
        real: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """One pass over a block, on context of any layout.

        Args:
            root: int64 `[1]`, the block's first token.
            positions: int64 `[n]`, absolute positions of the block's rows.
            context: Per layer keys and values `[kv_heads, t, head_dim]`.
            keys: int64 `[t + n]`, positions of the context and of the block.
            real: bool `[t + n]`, False where the context is padding; None for no padding.

        Returns:
            Hidden states `[K, H]` and float32 logits `[K, Vd]` of the slots.
        """
        x = self.embed_block(root, len(positions))
        masks = self._masks(positions, keys, real)
        return self.conclude(self.backbone(x, positions, context, masks))

    def embed_block(self, root: Tensor, size: int) -> Tensor:
        """What the first layer sees of the block behind `root`, `[size, H]`."""
        if self._table is not None:
            rows = np.empty((size, self.spec.hidden_size), np.float32)
            rows[0], rows[1:] = self._table[int(root)], self._table[self.spec.mask_token_id]
            return torch.from_numpy(rows)
        return self._embed(torch.cat((root, self._mask.expand(size - 1))))

    def conclude(self, rows: Tensor, logits: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Slots and logits, as `marginals` gives them, of a block's final rows `[n, H]`; `logits`
        are the output product's, where it was computed already."""
        hidden = self._slots(rows)
        return hidden, self._logits(self._output(hidden) if logits is None else logits)

    def _slots(self, rows: Tensor) -> Tensor:
        """The rows that predict something: without `shift_label`, the root's does not."""
        return rows if self.spec.shift_label else rows[1:]

    def _embed(self, tokens: Tensor) -> Tensor:
        """What the block's first layer sees of `tokens`, `[n, H]`."""
        scale = self.spec.embedding_scale
        if self._embedding is None and scale is None:
            return self.target.embed(tokens)
        table = self.target.embedding.weight if self._embedding is None else self._embedding
        return F.embedding(tokens, table) * (1.0 if scale is None else scale)

    def _logits(self, logits: Tensor) -> Tensor:
        """float32 marginal logits `[K, Vd]` of what the output product says."""
        logits = logits.float()
        if self.spec.output_multiplier != 1.0:
            logits = logits * self.spec.output_multiplier
        cap = self.spec.softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def block_size(self, asked: int | None) -> int:
        """The block size to use: the drafter's own, or a smaller one.

        Raises:
            ConfigError: The drafter was trained for shorter blocks.
        """
        own = self.spec.block_size
        if asked is not None and asked > own:
            raise ConfigError(
                f"block_size {asked} is larger than the {own} this drafter was trained for.",
                f"Use {own} or less.",
            )
        return asked or own

    def _masks(
        self, positions: Tensor, keys: Tensor, real: Tensor | None
    ) -> list[Tensor | None] | None:
        """Masks of layers that slide or look only backwards; distances count positions."""
        if not self._masked and real is None:
            return None
        kinds = list(zip(self.spec.windows, self.spec.causal, strict=True))
        behind = positions[:, None] - keys[None]
        masks = {kind: _visible(behind, *kind) for kind in set(kinds)}
        if real is not None:
            everywhere = real.expand(len(positions), -1)
            masks = {k: everywhere if m is None else m & real for k, m in masks.items()}
        return [masks[kind] for kind in kinds]


def load_drafter(
    path: str | Path,
    target: Target,
    *,
    label: str = "",
    lean: bool = False,
    memory: Memory | None = None,
    rounded: bool = False,
) -> Drafter:
    """Read a checkpoint directory and bind it to `target`; options as in `Drafter`.

    Raises:
        CheckpointError: Damaged, unsupported, or made for another target.
    """
    return Drafter(
        read_checkpoint(path), target, label=label, lean=lean, memory=memory, rounded=rounded
    )


def _visible(behind: Tensor, window: int | None, causal: bool) -> Tensor | None:
    """Which keys a row sees, by how many positions they are `behind` it; None for all."""
    if window is None:
        return behind >= 0 if causal else None
    return (behind < window) & (behind >= 0 if causal else behind > -window)


def _check_match(checkpoint: DraftCheckpoint, target: Target) -> None:
    spec = checkpoint.spec
    remedy = "Give the drafter that was trained for this target."
    if spec.hidden_size != target.hidden_size:
        raise CheckpointError(
            f"The drafter has hidden size {spec.hidden_size}, the target {target.hidden_size}.",
            remedy,
        )
    if spec.num_target_layers not in (None, target.num_layers):
        raise CheckpointError(
            f"The drafter was trained for a target of {spec.num_target_layers} layers; this one "
            f"has {target.num_layers}.",
            remedy,
        )
    if max(spec.target_layer_ids) >= target.num_layers or min(spec.target_layer_ids) < 0:
        raise CheckpointError(
            f"The drafter reads target layers {list(spec.target_layer_ids)}, but the target has "
            f"{target.num_layers} layers.",
            remedy,
        )
    rows = target.embedding.weight.shape[0]
    if checkpoint.embedding is not None:
        rows = max(rows, len(checkpoint.embedding))
    if spec.mask_token_id >= rows:
        raise CheckpointError(
            f"The drafter's mask token {spec.mask_token_id} has no row in the target's embedding "
            f"table of {rows} rows.",
            "Use the padded checkpoint of the target that the drafter was trained on.",
        )

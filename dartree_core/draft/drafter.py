"""A drafter bound to its target: from committed context and a root to a block of marginals."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dartree_core.draft.checkpoint import DraftCheckpoint, read_checkpoint
from dartree_core.draft.heads import CorrectionHead
from dartree_core.draft.vocabulary import DraftVocabulary
from dartree_core.errors import CheckpointError, ConfigError
from dartree_core.models import kernels
from dartree_core.models.memory import Memory
from dartree_core.models.target import Target


@dataclass(slots=True)
class BlockDraft:
    """What one drafter pass says about the next tokens.

    Attributes:
        hidden: `[K, H]`, the slots' final hidden states.
        base_logits: float32 `[K, Vd]`, marginal logits over the drafter's vocabulary.
        vocabulary: Maps the drafter's rows to target ids.
        scale: What a head's correction is multiplied with before it is added: 1, or with
            coupled drafting one over the temperature that `base_logits` were divided by.
    """

    hidden: Tensor
    base_logits: Tensor
    vocabulary: DraftVocabulary
    scale: float = 1.0

    @property
    def num_slots(self) -> int:
        """K, the deepest a tree on this block can get."""
        return len(self.hidden)


class DraftCache:
    """Keys and values of committed context, per draft layer `[kv_heads, capacity, head_dim]`.

    Blocks never enter: only context features persist (conformance: the cache is cut back to the
    committed positions after every pass).
    """

    def __init__(self, num_layers: int) -> None:
        self.length = 0
        self._layers: list[tuple[Tensor, Tensor] | None] = [None] * num_layers

    def append(self, new: list[tuple[Tensor, Tensor]]) -> None:
        """Add keys and values `[kv_heads, t, head_dim]` of `t` more positions."""
        count = new[0][0].shape[1]
        end = self.length + count
        for i, (k, v) in enumerate(new):
            held = self._layers[i]
            if held is None or held[0].shape[1] < end:
                held = self._layers[i] = (self._grown(held, k, end), self._grown(held, v, end, 1))
            held[0][:, self.length : end] = k
            held[1][:, self.length : end] = v
        self.length = end

    def _grown(
        self, held: tuple[Tensor, Tensor] | None, like: Tensor, end: int, part: int = 0
    ) -> Tensor:
        capacity = -(-(end * 3 // 2) // 256) * 256
        out = like.new_empty(like.shape[0], capacity, like.shape[2])
        if held is not None:
            out[:, : self.length] = held[part][:, : self.length]
        return out

    def context(self) -> list[tuple[Tensor, Tensor]]:
        """Per layer views of the committed keys and values."""
        held = [kv for kv in self._layers if kv is not None]
        return [(k[:, : self.length], v[:, : self.length]) for k, v in held]

    def crop(self, length: int) -> None:
        """Forget all positions from `length` on."""
        self.length = min(self.length, length)


class Drafter:
    """Backbone, head and vocabulary, with the target's embedding and output tables.

    Args:
        checkpoint: As read from disk.
        target: The model it was trained for.
        label: Name shown to users.
        lean: Hand the backbone's products to the target's kernels; its weights cannot be read
            any more then.
        memory: Where kernel measurements are kept.

    Raises:
        CheckpointError: Shapes say that the drafter belongs to another target.
    """

    def __init__(
        self,
        checkpoint: DraftCheckpoint,
        target: Target,
        *,
        label: str = "",
        lean: bool = False,
        memory: Memory | None = None,
    ) -> None:
        spec = checkpoint.spec
        _check_match(checkpoint, target)
        self.spec = spec
        self.label = label or checkpoint.path.name
        self.target = target
        self.backbone = checkpoint.backbone.to(target.device, target.dtype)
        kernel = "dense"
        if lean:
            names = kernels.candidates(target.device, target.weight_dtype)
            kernel = kernels.choose(checkpoint.backbone.fc.weight, names, memory or Memory())
            kernels.pack(self.backbone, kernel)
        self.head: CorrectionHead = checkpoint.head.to(target.device, target.dtype)
        ids = checkpoint.vocab_ids
        self.vocabulary = DraftVocabulary.from_checkpoint(
            None if ids is None else ids.to(target.device),
            spec.draft_vocab_size,
            target.vocab_size,
        )
        output = self.vocabulary.select(target.output_weight).detach()
        self._output = kernels.KERNELS[kernel](output, None)
        self._mask = torch.tensor([spec.mask_token_id], device=target.device)

    @property
    def taps(self) -> tuple[int, ...]:
        """Target layers whose outputs are the context feature."""
        return self.spec.target_layer_ids

    def new_cache(self) -> DraftCache:
        """An empty cache for one sequence."""
        return DraftCache(self.spec.num_layers)

    @torch.inference_mode()
    def extend(self, features: Tensor, cache: DraftCache) -> None:
        """Commit context features `[t, layers * H]` of the next `t` positions."""
        end = cache.length + len(features)
        self.backbone.rope.reserve(end, features.device, features.dtype)
        positions = torch.arange(cache.length, end, device=features.device)
        cache.append(self.backbone.context_keys_values(features, positions))

    @torch.inference_mode()
    def draft(self, root: Tensor, cache: DraftCache, block_size: int | None = None) -> BlockDraft:
        """Marginals of the tokens after `root`, which sits right behind the cached context.

        Args:
            root: int64 `[1]`, the last committed token, not yet in the cache.
            cache: Context features of all earlier positions.
            block_size: Smaller than the drafter's own, to look less far.

        Raises:
            ConfigError: The block is larger than the drafter was trained for.
        """
        size = self.block_size(block_size)
        tokens = torch.cat((root, self._mask.expand(size - 1)))
        self.backbone.rope.reserve(cache.length + size, root.device, self.target.dtype)
        positions = torch.arange(cache.length, cache.length + size, device=root.device)
        hidden = self.backbone(
            self.target.embed(tokens),
            positions,
            cache.context(),
            self._masks(positions, cache.length),
        )
        if not self.spec.shift_label:
            hidden = hidden[1:]
        return BlockDraft(hidden, self._output(hidden).float(), self.vocabulary)

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

    def _masks(self, positions: Tensor, length: int) -> list[Tensor | None] | None:
        """Window masks for sliding layers; distance counts positions, in both directions."""
        if all(w is None for w in self.spec.windows):
            return None
        keys = torch.cat((torch.arange(length, device=positions.device), positions))
        distance = (positions[:, None] - keys[None]).abs()
        return [None if w is None else distance < w for w in self.spec.windows]


def load_drafter(
    path: str | Path,
    target: Target,
    *,
    label: str = "",
    lean: bool = False,
    memory: Memory | None = None,
) -> Drafter:
    """Read a checkpoint directory and bind it to `target`; options as in `Drafter`.

    Raises:
        CheckpointError: Damaged, unsupported, or made for another target.
    """
    return Drafter(read_checkpoint(path), target, label=label, lean=lean, memory=memory)


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
    if spec.mask_token_id >= rows:
        raise CheckpointError(
            f"The drafter's mask token {spec.mask_token_id} has no row in the target's embedding "
            f"table of {rows} rows.",
            "Use the padded checkpoint of the target that the drafter was trained on.",
        )

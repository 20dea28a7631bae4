"""A drafter under training: backbone and head over the target's frozen tables."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dartree_core.draft.dflash import DFlashBackbone, DraftLayer
from dartree_core.draft.heads import CorrectionHead, DominoHead, make_head
from dartree_core.draft.spec import DraftSpec
from dartree_core.draft.vocabulary import DraftVocabulary
from dartree_core.models.target import Target
from dartree_core.parallel.tables import whole
from dartree_core.train.blocks import GROUP, Blocks
from dartree_core.train.logits import logit_factor, softcap


class Tables:
    """The target's tables as a drafter uses them; nothing here is trained.

    All processes of a target held in parts make theirs at the same time.

    Args:
        target: Owner of the embedding and output tables.
        vocabulary: Tokens the drafter can propose.
        dtype: Of the output table, the precision of matrix products.
    """

    def __init__(self, target: Target, vocabulary: DraftVocabulary, dtype: torch.dtype) -> None:
        self.vocabulary = vocabulary
        self._target = target
        self.output = vocabulary.select(target.output_weight).detach().to(dtype)
        self.rows = torch.full((target.vocab_size,), -1, device=target.device)
        ids = torch.arange(vocabulary.size, device=target.device)
        self.rows[vocabulary.to_target(ids)] = ids
        self._bias: Tensor | None = None
        if getattr(target.output, "bias", None) is not None:
            self._bias = vocabulary.select(whole(target.output.bias)).detach().float()
        self._factor = logit_factor(target)
        self._softcap = softcap(target)

    @torch.no_grad()
    def embed(self, tokens: Tensor) -> Tensor:
        """float32 target embeddings `[..., H]` of `tokens` `[...]`."""
        return self._target.embed(tokens.flatten()).float().view(*tokens.shape, -1)

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 logits `[n, Vd]` of hidden states `[n, H]`, over the drafter's vocabulary."""
        return F.linear(hidden.to(self.output.dtype), self.output).float()

    @torch.no_grad()
    def teacher(self, final: Tensor) -> Tensor:
        """The target's probabilities `[n, Vd]` from its final hidden states `[n, H]`."""
        logits = self.logits(final)
        if self._bias is not None:
            logits = logits + self._bias
        if self._factor != 1.0:
            logits = logits * self._factor
        if self._softcap is not None:
            logits = self._softcap * torch.tanh(logits / self._softcap)
        return torch.softmax(logits, dim=-1)


@dataclass(slots=True)
class Scales:
    """Input scales that are divided out while training and folded into weights at export.

    Raw hidden states have outlier dimensions hundreds of times larger than the rest, and target
    embeddings are far smaller than 1; on either a matrix learns slowly.

    Attributes:
        features: `[taps * H]`, standard deviation of each feature.
        embedding: Standard deviation of embedding entries.
    """

    features: Tensor
    embedding: float


class TrainableDrafter(nn.Module):
    """A drafter whose weights act on scaled inputs.

    Args:
        spec: Shapes.
        scales: Divided out of features and of the head's embeddings.
    """

    def __init__(self, spec: DraftSpec, scales: Scales) -> None:
        super().__init__()
        self.spec = spec
        self.backbone = DFlashBackbone(spec)
        self.head: CorrectionHead = make_head(spec)
        self.register_buffer("feature_scale", scales.features, persistent=False)
        self.feature_scale: Tensor
        self.embedding_scale = scales.embedding

    def hidden(self, features: Tensor, blocks: Blocks, tables: Tables) -> Tensor:
        """The slots' final hidden states `[A, K, H]`.

        Args:
            features: `[t, taps * H]`, the target's raw states at every position.
            blocks: Of that sequence.
            tables: The target's.
        """
        spec = self.spec
        length, rows = len(features), spec.block_size
        self.backbone.rope.reserve(length + rows, features.device, torch.float32)
        context = self.backbone.context_keys_values(
            features.float() / self.feature_scale,
            torch.arange(length, device=features.device),
        )
        groups = len(blocks.positions)
        shared = [(k.expand(groups, *k.shape), v.expand(groups, *v.shape)) for k, v in context]
        tokens = blocks.tokens.new_full((len(blocks.anchors), rows), spec.mask_token_id)
        tokens[:, 0] = blocks.tokens[:, 0]
        embedded = tables.embed(tokens).view(groups, GROUP * rows, -1)
        out: Tensor = self.backbone(embedded, blocks.positions, shared, blocks.masks)
        out = out.view(len(blocks.anchors), rows, -1)
        return out if spec.shift_label else out[:, 1:]

    def states(self, blocks: Blocks, tables: Tables) -> Tensor:
        """Head states `[A, K, S]`: slot k's state has read the root and slots before k."""
        tokens = blocks.tokens[:, :-1]
        embedded = tables.embed(tokens) / self.embedding_scale
        # The recurrence is small and compounds rounding, so it stays in float32.
        with torch.autocast(embedded.device.type, enabled=False):
            states = [self.head.root_state(tokens[:, 0], embedded[:, 0])]
            for k in range(1, tokens.shape[1]):
                states.append(self.head.advance(states[-1], tokens[:, k], embedded[:, k]))
        return torch.stack(states, dim=1)

    def corrected(self, base: Tensor, hidden: Tensor, states: Tensor, slot: Tensor) -> Tensor:
        """Logits as decoding has them, float32 `[n, Vd]`.

        Args:
            base: `[n, Vd]`, marginal logits.
            hidden: `[n, H]`, hidden states of the slots.
            states: `[n, S]`, head states before them.
            slot: int64 `[n]`, slots from 0; the first `prefix_len` stay uncorrected.
        """
        found = base + self.head.correct(self.head.prepare(hidden), states, None).float()
        prefix = self.head.prefix_len
        return torch.where((slot < prefix)[:, None], base, found) if prefix else found

    @torch.no_grad()
    def fold_in(self, tensors: dict[str, Tensor]) -> None:
        """Load a checkpoint's tensors, whose weights act on raw inputs."""
        own = self._parts()
        for name, tensor in tensors.items():
            own[name].copy_(tensor.to(own[name]) * self._input_scale(name))

    @torch.no_grad()
    def turn_queries(self, positions: int) -> None:
        """Make every block row attend as if it stood `positions` later.

        Exact where a query norm treats the two halves of a rotary pair alike, else close.
        """
        angle = positions * self.backbone.rope.inverse.float()
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        for layer in self.backbone.layers:
            assert isinstance(layer, DraftLayer)
            weight = layer.self_attn.q_proj.weight
            rows = weight.view(-1, self.spec.head_dim, weight.shape[1])
            first, second = rows.chunk(2, dim=1)
            turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=1)
            weight.copy_(turned.flatten(0, 1))

    @torch.no_grad()
    def folded(self) -> dict[str, Tensor]:
        """The tensors of a checkpoint: the same function, on raw inputs."""
        return {n: p.detach() / self._input_scale(n) for n, p in self._parts().items()}

    def _parts(self) -> dict[str, Tensor]:
        return {**self.backbone.state_dict(), **self.head.state_dict()}

    def _input_scale(self, name: str) -> Tensor | float:
        if name == "fc.weight":
            return self.feature_scale
        if name == "prefix_gru.weight_ih_l0" and isinstance(self.head, DominoHead):
            return self.embedding_scale
        return 1.0

"""Where a drafter's first weights come from: its target, another drafter, or chance."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dartree_core.draft.checkpoint import DraftCheckpoint, read_checkpoint
from dartree_core.errors import ConfigError
from dartree_core.models.target import Target
from dartree_core.train.features import FeatureSource
from dartree_core.train.model import Scales, TrainableDrafter
from dartree_core.train.reconstruct import init_from_target
from dartree_core.train.stream import keyed_generator

_PROBE = 32
_OUTPUTS = {"embed_proj.2.weight", "embed_proj.2.bias"}
"""Tensors of the Domino head with a row for each token."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where first weights come from.

    Attributes:
        kind: `target`, `random` or `drafter`.
        folder: The drafter's, for that kind.
        checkpoint: The drafter, read.
    """

    kind: str
    folder: Path | None = None
    checkpoint: DraftCheckpoint | None = None

    @classmethod
    def parse(cls, text: str) -> Start:
        """`target`, `random`, or a drafter's folder.

        Raises:
            ConfigError: It is none of these.
            CheckpointError: The folder holds no usable drafter.
        """
        if text in ("target", "random"):
            return cls(text)
        folder = Path(text).expanduser()
        if not folder.is_dir():
            raise ConfigError(
                f"First weights cannot come from {text!r}.",
                "Use target, random, or the folder of a drafter.",
            )
        return cls("drafter", folder, read_checkpoint(folder))

    @property
    def vocab_ids(self) -> Tensor | None:
        """Target ids of the drafter's rows, int64, or None."""
        ids = self.checkpoint.vocab_ids if self.checkpoint else None
        return None if ids is None else ids.long()

    @property
    def mask_token_id(self) -> int | None:
        """The drafter's mask token, or None."""
        return self.checkpoint.spec.mask_token_id if self.checkpoint else None

    def describe(self) -> str:
        """In words, for a model card."""
        return {
            "target": "the target's last layers",
            "random": "random",
            "drafter": "an earlier drafter of the same shapes",
        }[self.kind]


def probe_features(source: FeatureSource) -> Tensor:
    """float32 `[n, taps * H]`: features of a few samples spread over the corpus.

    The first position of every sample is left out: models park huge values there, which would
    hide the scale of all others.
    """
    count = len(source.corpus)
    picks = sorted({i * count // _PROBE for i in range(_PROBE)})
    return torch.cat([source[i].context.float()[1:] for i in picks])


def input_scales(features: Tensor, target: Target) -> Scales:
    """Scales that bring features `[n, taps * H]` and embeddings to unit size."""
    deviation = features.std(dim=0) if len(features) > 1 else torch.ones_like(features[0])
    # Embedded, not read from the table: some targets scale its rows.
    every = torch.arange(target.embedding.weight.shape[0], device=target.device)
    with torch.no_grad():
        size = float(target.embed(every).float().std())
    return Scales(deviation.clamp_min(1e-6), size)


def initialise(
    model: TrainableDrafter,
    start: Start,
    probe: Tensor,
    target: Target,
    vocab_ids: Tensor | None,
    seed: int,
) -> None:
    """Set first weights.

    Args:
        model: Freshly made.
        start: Where they come from.
        probe: See `probe_features`.
        target: The drafter's target.
        vocab_ids: Sorted target ids of the tokens the model drafts; None for all.
        seed: Of whatever is random.

    Raises:
        ConfigError: A drafter to start from has other shapes than the model.
    """
    if start.checkpoint is not None:
        _copy_drafter(model, start.checkpoint, vocab_ids)
        return
    _randomise(model, keyed_generator(seed, 4))
    if start.kind == "target":
        init_from_target(model, target, probe)


def _copy_drafter(
    model: TrainableDrafter, checkpoint: DraftCheckpoint, vocab_ids: Tensor | None
) -> None:
    found = {**checkpoint.backbone.state_dict(), **checkpoint.head.state_dict()}
    wanted = model.folded()
    if checkpoint.spec.draft_vocab_size < model.spec.draft_vocab_size:
        assert checkpoint.vocab_ids is not None
        _widen(found, checkpoint.vocab_ids.long(), vocab_ids, model.spec.draft_vocab_size)
    differing = [
        name
        for name in sorted(set(found) | set(wanted))
        if name not in found or name not in wanted or found[name].shape != wanted[name].shape
    ]
    if checkpoint.spec.target_layer_ids != model.spec.target_layer_ids:
        differing.insert(0, "target layers")
    if differing:
        raise ConfigError(
            f"The drafter in {checkpoint.path} has other shapes than the recipe "
            f"({', '.join(differing[:3])}).",
            "Make the recipe's [drafter] section agree with its config.json.",
        )
    model.fold_in(found)
    if checkpoint.spec.shift_label != model.spec.shift_label:
        # Every row now predicts one token further (or less far), so it should look at the
        # context as the row beside it did: turn the queries by one position.
        model.turn_queries(1 if model.spec.shift_label else -1)


def _widen(found: dict[str, Tensor], old: Tensor, new: Tensor | None, size: int) -> None:
    """Give the head's output rows for a larger vocabulary.

    Corrections only count against each other, and a trained head may move all of them by much.
    New tokens get the mean one, which leaves them where they are among the others.

    Args:
        found: A drafter's tensors; changed.
        old: Target ids of its rows.
        new: Sorted target ids of the rows wanted, all of `old` among them; None for every id.
        size: Number of rows wanted.
    """
    old = old.to("cpu")
    rows = old if new is None else torch.searchsorted(new.to("cpu"), old)
    for name in _OUTPUTS & found.keys():
        tensor = found[name]
        wide = tensor.mean(dim=0).repeat(size, *(1 for _ in tensor.shape[1:]))
        wide[rows] = tensor
        found[name] = wide


def _randomise(model: TrainableDrafter, generator: torch.Generator) -> None:
    """Small normal matrices, and a head that corrects nothing yet."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.empty(parameter.shape)
            if "prefix_gru" in name:
                bound = (parameter.shape[0] / 3) ** -0.5
                values.uniform_(-bound, bound, generator=generator)
            elif name.endswith("embed_proj.2.weight"):
                values.zero_()
            elif parameter.dim() >= 2:
                values.normal_(0, 0.02, generator=generator)
            else:
                continue
            parameter.copy_(values)

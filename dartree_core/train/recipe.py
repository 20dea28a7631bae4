"""What a training run is: every setting in one typed, frozen value with a TOML form."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from dartree_core.errors import ConfigError

Precision = Literal["auto", "float32", "bfloat16"]
HeadChoice = Literal["domino", "none"]


def _require(ok: bool, message: str, remedy: str) -> None:
    if not ok:
        raise ConfigError(message, remedy)


def _positive(section: str, owner: object, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        _require(
            value > 0,
            f"{section}.{name} is {value}, but must be above 0.",
            f"Set {name} to a positive number.",
        )


def _share(section: str, owner: object, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        _require(
            0 <= value <= 1,
            f"{section}.{name} is {value}, but it is a share.",
            f"Set {name} to a number from 0 to 1.",
        )


@dataclass(frozen=True, slots=True)
class ShapeRecipe:
    """The drafter's shapes; what is not here (hidden size, heads, MLP) is the target's.

    Attributes:
        block_size: Tokens in a block, root included.
        num_layers: Decoder layers of the drafter.
        target_layers: Target layers read as features; empty takes `num_features` spread ones.
        num_features: How many layers to read when `target_layers` is empty.
        mask_token_id: Token that stands for "unknown" in a block; -1 picks an unused one.
        head: Correction head.
        head_embed: Low-rank width of the head's output.
        head_state: GRU state of the head.
        prefix_len: First slots that stay uncorrected.
        shift_label: Row j predicts token j + 1, so that the root row predicts too.
        draft_vocab: Most frequent tokens the drafter can propose; 0 for the whole vocabulary. More
            than a drafter trained on had keeps its tokens and adds others.
    """

    block_size: int = 8
    num_layers: int = 2
    target_layers: tuple[int, ...] = ()
    num_features: int = 4
    mask_token_id: int = -1
    head: HeadChoice = "domino"
    head_embed: int = 128
    head_state: int = 256
    prefix_len: int = 0
    shift_label: bool = False
    draft_vocab: int = 8192

    def __post_init__(self) -> None:
        _positive("drafter", self, "num_layers", "num_features", "head_embed", "head_state")
        _require(
            self.block_size >= 2,
            f"drafter.block_size is {self.block_size}, but a block holds the root and a mask.",
            "Use 2 or more; 8 suits small targets, 16 large ones.",
        )
        _require(
            self.head in get_args(HeadChoice),
            f"There is no correction head {self.head!r}.",
            f"Choose one of: {', '.join(get_args(HeadChoice))}.",
        )
        _require(
            self.draft_vocab >= 0 and self.prefix_len >= 0,
            "drafter.draft_vocab and drafter.prefix_len cannot be negative.",
            "Use 0 for the whole vocabulary and for no uncorrected slots.",
        )


@dataclass(frozen=True, slots=True)
class DataRecipe:
    """How blocks are drawn from the corpus.

    Attributes:
        anchors: Blocks drawn from one sequence at one visit (fewer where it is short).
        sequences: Sequences in one optimiser step, over all processes.
        max_length: Tokens of a sequence that are read; the rest is cut off.
        repeat: Visits to every sequence in an epoch, at other anchors each time. The target's
            pass over a sequence costs more than a visit, so a cache makes repeats cheap.
        window: Sequences among which the visits of an epoch are mixed; 0 for all of them.
    """

    anchors: int = 48
    sequences: int = 4
    max_length: int = 3072
    repeat: int = 1
    window: int = 0

    def __post_init__(self) -> None:
        _positive("data", self, "anchors", "sequences", "max_length", "repeat")
        _require(
            self.window >= 0,
            f"data.window is {self.window}, but it cannot be negative.",
            "Use 0 to mix all sequences.",
        )


@dataclass(frozen=True, slots=True)
class FeatureRecipe:
    """Where the target's hidden states come from.

    Attributes:
        cache_gb: Disk to spend on the states of a corpus, held-out answers being one of their own;
            sequences beyond it are computed at every visit. What other runs left in the same
            folder is neither counted nor removed.
        precision: Of the target's forward pass while training.
    """

    cache_gb: float = 0.0
    precision: Precision = "auto"

    def __post_init__(self) -> None:
        _require(
            self.cache_gb >= 0,
            f"features.cache_gb is {self.cache_gb}, but it cannot be negative.",
            "Use 0 to compute features on the fly, or a size in gigabytes.",
        )
        _known_precision("features", self.precision)


@dataclass(frozen=True, slots=True)
class LossRecipe:
    """What is minimised: `(1 - a) * base + a * corrected + feature_weight * mse`.

    Attributes:
        decay: Slot k weighs `exp(-k / decay)`.
        sample_slots: Draw slots with that probability instead of weighing them: the same
            expectation for a fraction of the output-table products.
        head_start, head_end: `a` at the first step and after `head_ramp` of all steps.
        head_ramp: Share of the run over which `a` grows linearly.
        soft: Share of the target's distribution, against the corpus token, in both losses.
        candidates: When above 0, the corrected loss compares distributions renormalised over
            this many tokens with the largest base logits, the set a tree chooses from
            (arXiv 2609.39972).
        feature_weight: Weight of the squared error to the target's final hidden state,
            relative to that state's mean square.
    """

    decay: float = 2.5
    sample_slots: bool = True
    head_start: float = 0.0
    head_end: float = 0.7
    head_ramp: float = 0.4
    soft: float = 1.0
    candidates: int = 0
    feature_weight: float = 0.5

    def __post_init__(self) -> None:
        _positive("loss", self, "decay")
        _share("loss", self, "head_start", "head_end", "head_ramp", "soft")
        _require(
            self.candidates >= 0 and self.feature_weight >= 0,
            "loss.candidates and loss.feature_weight cannot be negative.",
            "Use 0 to turn either off.",
        )


@dataclass(frozen=True, slots=True)
class OptimiserRecipe:
    """AdamW, its schedule and the averaged weights that are exported.

    Attributes:
        lr: Peak learning rate.
        final_lr: Share of `lr` left at the last step.
        warmup: Steps of linear warm-up.
        anneal: Share of the run, at its end, over which a cosine lowers the rate; 1 is the
            plain cosine, less holds the peak first, which lets a run be extended.
        weight_decay: On matrices only.
        beta1, beta2: Adam's averages.
        clip: Largest gradient norm.
        ema: Decay of the averaged weights, per step; 0 exports the last weights.
    """

    lr: float = 1.5e-3
    final_lr: float = 0.05
    warmup: int = 50
    anneal: float = 1.0
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.95
    clip: float = 1.0
    ema: float = 0.99

    def __post_init__(self) -> None:
        _positive("optimiser", self, "lr", "clip", "anneal")
        _share("optimiser", self, "final_lr", "anneal", "beta1", "beta2", "ema")
        _require(
            self.warmup >= 0 and self.weight_decay >= 0,
            "optimiser.warmup and optimiser.weight_decay cannot be negative.",
            "Use 0 to turn either off.",
        )


@dataclass(frozen=True, slots=True)
class RunRecipe:
    """Length, seed and bookkeeping of a run.

    Attributes:
        steps: Optimiser steps.
        seed: Decides initial weights, data order and anchors.
        precision: Of the drafter's matrix products; weights and sums stay float32. "auto" is
            bfloat16 on CUDA and on CPUs with bfloat16 arithmetic, else float32.
        save_seconds: Time between checkpoints; 0 saves after every step.
        eval_steps: Steps between held-out measurements; 0 for none.
        eval_sequences: Held-out sequences measured.
    """

    steps: int = 5000
    seed: int = 0
    precision: Precision = "auto"
    save_seconds: float = 120.0
    eval_steps: int = 500
    eval_sequences: int = 64

    def __post_init__(self) -> None:
        _positive("run", self, "steps", "eval_sequences")
        _require(
            self.save_seconds >= 0 and self.eval_steps >= 0 and self.seed >= 0,
            "run.save_seconds, run.eval_steps and run.seed cannot be negative.",
            "Use 0 to save after every step, or to measure nothing.",
        )
        _known_precision("run", self.precision)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A whole training run."""

    drafter: ShapeRecipe = field(default_factory=ShapeRecipe)
    data: DataRecipe = field(default_factory=DataRecipe)
    features: FeatureRecipe = field(default_factory=FeatureRecipe)
    loss: LossRecipe = field(default_factory=LossRecipe)
    optimiser: OptimiserRecipe = field(default_factory=OptimiserRecipe)
    run: RunRecipe = field(default_factory=RunRecipe)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Section by section, JSON- and TOML-ready."""
        return {
            section: {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}
            for section, values in asdict(self).items()
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], base: Recipe | None = None) -> Recipe:
        """Read sections; what is absent keeps `base`'s value (the default recipe's).

        Raises:
            ConfigError: A name is unknown, or a value has the wrong type or range.
        """
        base = base or cls()
        names = {f.name for f in fields(cls)}
        unknown = sorted(set(data) - names)
        _require(
            not unknown,
            f"A recipe has no section {', '.join(unknown)}.",
            f"Its sections are: {', '.join(sorted(names))}.",
        )
        return replace(
            base, **{name: _merge(name, getattr(base, name), data[name]) for name in data}
        )

    def to_toml(self) -> str:
        """The recipe as a TOML document that `from_toml` reads back unchanged."""
        parts = []
        for section, values in self.to_dict().items():
            lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
            parts.append("\n".join((f"[{section}]", *lines)))
        return "\n\n".join(parts) + "\n"

    @classmethod
    def from_toml(cls, path: str | Path, base: Recipe | None = None) -> Recipe:
        """Read a recipe file.

        Raises:
            ConfigError: The file is unreadable, no TOML, or no recipe.
        """
        try:
            data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(
                f"The recipe {path} cannot be read ({error.strerror}).",
                "Give the path of a TOML file.",
            ) from error
        except ValueError as error:
            raise ConfigError(
                f"The recipe {path} is not valid TOML ({error}).",
                "Compare it with the output of `dartree train drafter --print-recipe`.",
            ) from error
        return cls.from_dict(data, base)


def _known_precision(section: str, value: str) -> None:
    _require(
        value in get_args(Precision),
        f"{section}.precision is {value!r}.",
        f"Choose one of: {', '.join(get_args(Precision))}.",
    )


def _merge(section: str, base: Any, values: Any) -> Any:
    _require(
        isinstance(values, Mapping),
        f"The recipe's {section!r} is {values!r}, but must be a section.",
        f"Write [{section}] and its settings below it.",
    )
    known = {f.name: getattr(base, f.name) for f in fields(base)}
    unknown = sorted(set(values) - set(known))
    _require(
        not unknown,
        f"The recipe has no setting {', '.join(f'{section}.{name}' for name in unknown)}.",
        f"Known settings: {', '.join(f'{section}.{name}' for name in sorted(known))}.",
    )
    typed = {
        name: _typed(f"{section}.{name}", known[name], value) for name, value in values.items()
    }
    return replace(base, **typed)


def _typed(name: str, like: Any, value: Any) -> Any:
    if isinstance(like, tuple) and isinstance(value, list | tuple):
        if all(isinstance(v, int) and not isinstance(v, bool) for v in value):
            return tuple(value)
    elif isinstance(like, bool) or isinstance(value, bool):
        if isinstance(like, bool) and isinstance(value, bool):
            return value
    elif isinstance(like, float) and isinstance(value, int | float):
        return float(value)
    elif type(value) is type(like):
        return value
    kind = "a list of whole numbers" if isinstance(like, tuple) else f"a {type(like).__name__}"
    raise ConfigError(f"The recipe's {name} is {value!r}, but must be {kind}.", "Correct it.")


_SMALL = Recipe(
    drafter=ShapeRecipe(block_size=6, shift_label=True),
    data=DataRecipe(anchors=56, max_length=1024, repeat=4),
    features=FeatureRecipe(cache_gb=8.0),
)
_LARGE = Recipe(
    drafter=ShapeRecipe(
        block_size=16,
        num_layers=5,
        num_features=5,
        head_embed=256,
        head_state=1024,
        draft_vocab=0,
        prefix_len=1,
        shift_label=True,
    ),
    data=DataRecipe(anchors=256, sequences=16),
    loss=LossRecipe(decay=7.0, head_end=1.0, head_ramp=1.0, soft=0.5, feature_weight=0.1),
    optimiser=OptimiserRecipe(lr=6e-4, warmup=400, ema=0.0),
    run=RunRecipe(steps=60_000, save_seconds=900.0, eval_steps=2000),
)

PRESETS: dict[str, Recipe] = {
    "small": _SMALL,
    "4b": _LARGE,
    "8b": replace(_LARGE, data=DataRecipe(anchors=256, sequences=32)),
}
"""Starting points by the target's size. `small` (up to about 0.5B) trains on a CPU in hours; `4b`
and `8b` follow the published Domino and DFlash runs and need a GPU, or several: one epoch of
their data is years of CPU time."""


def preset(name: str) -> Recipe:
    """The recipe of that name.

    Raises:
        ConfigError: There is none.
    """
    _require(
        name in PRESETS,
        f"There is no recipe {name!r}.",
        f"Choose one of: {', '.join(PRESETS)}, or give the path of a TOML file.",
    )
    return PRESETS[name]

"""Decoding settings: plain frozen data, validated where it is made.

Nothing here imports torch, so a terminal or a trace reader can use it freely.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, get_args

from dartree_core.errors import ConfigError

Method = Literal["ar", "dflash", "domino", "ddtree", "dartree", "dartree-fixed"]
"""`ar` plain decoding; `dflash`, `domino` chains; `ddtree` best-first tree on the marginals;
`dartree` supertree then pruning (the paper's default); `dartree-fixed` per-depth quotas."""

Detail = Literal["basic", "full"]

AUTO_LIMIT = 64
"""Most draft nodes that budget `auto` may verify in a round."""

METHODS: tuple[Method, ...] = get_args(Method)
CHAINS: tuple[Method, ...] = ("dflash", "domino")


def _require(ok: bool, message: str, remedy: str) -> None:
    if not ok:
        raise ConfigError(message, remedy)


def _numbers(owner: object, *names: str) -> None:
    """Fields that are floats: whole numbers, as JSON may give them, become such."""
    for name in names:
        value = getattr(owner, name)
        _require(
            isinstance(value, int | float) and not isinstance(value, bool),
            f"{name} is {value!r}, but must be a number.",
            f"Set {name} to a number.",
        )
        try:
            object.__setattr__(owner, name, float(value))
        except OverflowError as error:
            raise ConfigError(f"{name} is too large.", f"Set {name} to a number.") from error


def _whole(value: object, least: int) -> bool:
    """Whether it is a whole number of at least so much; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _switches(owner: object, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        _require(
            isinstance(value, bool),
            f"{name} is {value!r}, but is either on or off.",
            f"Set {name} to true or false.",
        )


@dataclass(frozen=True, slots=True)
class TreeConfig:
    """How a draft tree is grown and pruned (arXiv 2608.13524, section 3).

    Attributes:
        budget: B, most draft nodes verified in a round, the root not counted; `auto` lets every
            round choose what pays on this machine, up to `AUTO_LIMIT`.
        width: W, nodes kept per depth while the supertree grows (`dartree` only).
        candidates: size of each slot's candidate set, the tokens with the largest base logits.
        expansion_k: most children scored for one parent.
        depth_bonus: beta, added per depth to the pruning key; must not be positive, since only
            then is the top-B of the supertree closed under "parent of".
        block_size: tokens in a draft block, root included; None takes the drafter's own.
        coupled: when sampling, draft with the noise the target will choose with; off is the
            papers' behaviour. The output is the same either way.
        graft: let continuations that the text so far suggests compete in the tree (tree methods
            only); the papers have nothing like it. The output is the same either way.
    """

    budget: int | Literal["auto"] = 64
    width: int = 12
    candidates: int = 64
    expansion_k: int = 64
    depth_bonus: float = -0.2
    block_size: int | None = None
    coupled: bool = True
    graft: bool = False

    def __post_init__(self) -> None:
        for name in ("budget", "width", "candidates", "expansion_k"):
            value = getattr(self, name)
            if name == "budget" and value == "auto":
                continue
            _require(
                _whole(value, 1),
                f"{name} is {value!r}, but a tree needs a whole number of at least 1.",
                f"Set {name} to 1 or more, or use method 'ar' to decode without a tree.",
            )
        _numbers(self, "depth_bonus")
        _switches(self, "coupled", "graft")
        _require(
            math.isfinite(self.depth_bonus),
            f"depth_bonus is {self.depth_bonus}, but must be a finite number.",
            "Use 0 or a negative number; the paper uses -0.2.",
        )
        _require(
            self.depth_bonus <= 0,
            f"depth_bonus is {self.depth_bonus}, but a positive bonus could prune a parent "
            "and keep its child.",
            "Use 0 or a negative number; the paper uses -0.2.",
        )
        _require(
            self.block_size is None or _whole(self.block_size, 2),
            f"block_size is {self.block_size!r}, but a block holds the root and at least one mask.",
            "Use 2 or more, or leave it out for the drafter's own block size.",
        )

    @property
    def limit(self) -> int:
        """Most draft nodes of a round, as a number."""
        return AUTO_LIMIT if self.budget == "auto" else self.budget


@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """How the target's distribution becomes a token. Names and meanings are transformers'.

    Attributes:
        temperature: 0 is greedy.
        top_k: keep the k likeliest tokens; 0 keeps all.
        top_p: keep the smallest set whose mass reaches p; 1 keeps all.
        min_p: drop tokens below this share of the likeliest token's probability; 0 keeps all.
        repetition_penalty: above 1 discourages tokens already in the prompt or the answer.
        seed: noise is a function of (seed, absolute position), so the same seed gives the same
            text whatever the method or the tree.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        _numbers(self, "temperature", "top_p", "min_p", "repetition_penalty")
        _require(
            0 <= self.temperature < math.inf,
            f"temperature is {self.temperature}, but it is a finite number, 0 or above.",
            "Use 0 for greedy decoding or a positive number such as 0.8.",
        )
        _require(
            _whole(self.top_k, 0),
            f"top_k is {self.top_k!r}, but it counts tokens.",
            "Use 0 to keep all tokens or a whole number such as 40.",
        )
        _require(
            0 < self.top_p <= 1,
            f"top_p is {self.top_p}, but it is a probability mass.",
            "Use a number above 0 and up to 1.",
        )
        _require(
            0 <= self.min_p <= 1,
            f"min_p is {self.min_p}, but it is a share of the best token's probability.",
            "Use a number from 0 to 1.",
        )
        _require(
            0 < self.repetition_penalty < math.inf,
            f"repetition_penalty is {self.repetition_penalty}, but it divides logits.",
            "Use a positive, finite number; 1 is off.",
        )
        _require(
            _whole(self.seed, 0) and self.seed < 2**63,
            f"seed is {self.seed!r}, but it must be a whole number from 0 to 2**63 - 1.",
            "Use for example --seed 0.",
        )

    @property
    def greedy(self) -> bool:
        """True when the target's argmax decides (temperatures below 1e-5 count as 0)."""
        return self.temperature < 1e-5


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """Everything that decides what one turn decodes, and what it reports.

    Attributes:
        method: who drafts, see `Method`.
        tree: tree settings; ignored by `ar` and, apart from the block size, by chains.
        sampling: how the target chooses.
        max_new_tokens: hard limit on emitted tokens.
        stop: strings that end the turn; they are not part of the text.
        ignore_eos: go on past end-of-sequence tokens (benchmarks).
        detail: `full` adds ranks, target log-probabilities and coverage to every tree.
        stages: also emit the finer events of a round, for viewers that show a tree growing.
    """

    method: Method = "dartree"
    tree: TreeConfig = field(default_factory=TreeConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    max_new_tokens: int = 256
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    detail: Detail = "basic"
    stages: bool = False

    def __post_init__(self) -> None:
        _require(
            self.method in METHODS,
            f"There is no method {self.method!r}.",
            f"Choose one of: {', '.join(METHODS)}.",
        )
        _require(
            _whole(self.max_new_tokens, 1),
            f"max_new_tokens is {self.max_new_tokens!r}, but a turn emits at least one token.",
            "Use 1 or more.",
        )
        _require(
            self.detail in get_args(Detail),
            f"There is no detail level {self.detail!r}.",
            "Choose basic or full.",
        )
        _require(
            isinstance(self.tree, TreeConfig) and isinstance(self.sampling, SamplingConfig),
            "tree and sampling are groups of settings.",
            "Give a TreeConfig and a SamplingConfig, or single settings to with_changes.",
        )
        _switches(self, "ignore_eos", "stages")
        # One string is meant as one, not as its letters.
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        _require(
            isinstance(stop, Sequence) and all(isinstance(s, str) for s in stop),
            f"stop is {self.stop!r}, but must be strings.",
            "Give a list of strings.",
        )
        object.__setattr__(self, "stop", tuple(stop))
        _require(
            all(self.stop),
            "An empty stop string would end every answer before it starts.",
            "Leave it out.",
        )

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON-ready nested dictionaries."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DecodeConfig:
        """Inverse of `to_dict`; absent keys take defaults.

        Raises:
            ConfigError: a key is unknown or a value does not validate.
        """
        given = dict(data)
        tree = _build(TreeConfig, given.pop("tree", {}), "tree.")
        sampling = _build(SamplingConfig, given.pop("sampling", {}), "sampling.")
        config: DecodeConfig = _build(cls, {**given, "tree": tree, "sampling": sampling}, "")
        return config

    def with_changes(self, **changes: Any) -> DecodeConfig:
        """A copy with settings replaced, wherever they live.

        Flat names reach nested settings: `config.with_changes(budget=8, temperature=0.7)`.

        Raises:
            ConfigError: a name is unknown or a value does not validate.
        """
        tree = {k: changes.pop(k) for k in list(changes) if k in _names(TreeConfig)}
        sampling = {k: changes.pop(k) for k in list(changes) if k in _names(SamplingConfig)}
        unknown = set(changes) - setting_names()
        _require(
            not unknown,
            f"There is no setting {', '.join(sorted(unknown))}.",
            f"Known settings: {', '.join(sorted(setting_names()))}.",
        )
        return replace(
            self,
            **{
                "tree": replace(self.tree, **tree),
                "sampling": replace(self.sampling, **sampling),
                **changes,
            },
        )


PRESETS: Mapping[str, TreeConfig] = {
    "paper": TreeConfig(),
    "auto": TreeConfig(budget="auto", graft=True),
}
"""`paper`: the published settings. `auto`: every round sizes itself for this machine, and trees
may copy from the text so far."""


def _names(cls: type[Any]) -> set[str]:
    return {f.name for f in fields(cls)}


def setting_names() -> set[str]:
    """Every flat name `DecodeConfig.with_changes` accepts."""
    own = _names(DecodeConfig) - {"tree", "sampling"}
    return own | _names(TreeConfig) | _names(SamplingConfig)


def _build(cls: type[Any], data: Any, prefix: str) -> Any:
    _require(
        isinstance(data, Mapping),
        f"{prefix.rstrip('.') or 'the configuration'} is {data!r}, but must be an object.",
        "Give key and value pairs.",
    )
    unknown = set(data) - _names(cls)
    _require(
        not unknown,
        f"There is no setting {', '.join(prefix + str(k) for k in sorted(unknown))}.",
        f"Known settings: {', '.join(prefix + k for k in sorted(_names(cls)))}.",
    )
    return cls(**data)

"""What a benchmark measures: methods and settings multiplied out, each combination once."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from dartree_core.bench.records import Row
from dartree_core.config import METHODS, DecodeConfig, Method, TreeConfig
from dartree_core.errors import ConfigError

PEERS: dict[str, str] = {
    "hf": "transformers' generate",
    "hf-lookup": "transformers' prompt lookup",
    "hf-assistant": "transformers with an assistant model",
    "hf-dflash": "transformers' DFlash generator on the same drafter",
}
"""Methods of other engines that run beside ours, and what they are."""

AXES = ("budget", "width", "candidates", "block_size", "depth_bonus", "coupled", "graft")
"""Settings that may take several values."""

USES: dict[Method, tuple[str, ...]] = {
    "ar": (),
    "dflash": ("block_size", "coupled"),
    "domino": ("block_size", "coupled"),
    "ddtree": ("budget", "block_size", "coupled", "graft"),
    "dartree-fixed": ("budget", "candidates", "block_size", "coupled", "graft"),
    "dartree": AXES,
}
"""Settings that change what a method does; others would only repeat a measurement."""

_SHORT = {"budget": "B", "width": "W", "candidates": "k", "block_size": "b", "depth_bonus": "β"}
_SWITCH = {"on": True, "off": False}
_KINDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "temperature": ("number", float),
    "depth_bonus": ("number", float),
    "coupled": ("switch (on or off)", _SWITCH.__getitem__),
    "graft": ("switch (on or off)", _SWITCH.__getitem__),
    "budget": ("whole number or auto", lambda word: word if word == "auto" else int(word)),
}
"""What a setting's values are, where they are not whole numbers."""

_SWEEP = "For example --sweep budget=4,8,16 width=4,8."


@dataclass(frozen=True, slots=True)
class Variant:
    """A method with its settings.

    Attributes:
        method: One of ours, or a peer.
        settings: The settings it uses, as (name, value).
        label: For people: the method, and the settings that tell it from its siblings.
    """

    method: str
    settings: tuple[tuple[str, Any], ...] = ()
    label: str = ""

    @property
    def key(self) -> str:
        """The same for the same measurement, in this run and in others."""
        return " ".join([self.method, *(f"{name}={shown(value)}" for name, value in self.settings)])

    @property
    def is_peer(self) -> bool:
        """True for another engine's method."""
        return self.method in PEERS

    @property
    def uses(self) -> tuple[str, ...]:
        """Settings that change what the method does."""
        return _used(self.method)

    def config(self, base: DecodeConfig, temperature: float) -> DecodeConfig:
        """The settings of a turn.

        Raises:
            ConfigError: A value does not validate.
        """
        method: Method = "ar"
        for known in get_args(Method):
            if known == self.method:
                method = known
        # Chains have no budget: with `auto` they would be cut to what pays, unlike the papers'.
        tree = replace(TreeConfig(), **tree_settings(self.settings))
        sampling = replace(base.sampling, temperature=temperature)
        return replace(base, method=method, tree=tree, sampling=sampling)


def tree_settings(settings: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Settings of a variant as `TreeConfig` takes them."""
    given = dict(settings)
    if "candidates" in given:
        given["expansion_k"] = given["candidates"]
    return given


def variants(methods: Sequence[str], axes: Mapping[str, Sequence[Any]]) -> list[Variant]:
    """Every method with every combination of the settings it uses; AR is always there, first.

    Args:
        methods: Names, ours or peers'.
        axes: Setting to values; tree methods without a budget get `auto`.

    Raises:
        ConfigError: A method or setting is unknown, or a value does not validate.
    """
    unknown = [m for m in methods if m not in METHODS and m not in PEERS]
    if unknown:
        raise ConfigError(
            f"There is no method {unknown[0]!r}.",
            f"Choose from: {', '.join((*METHODS, *PEERS))}.",
        )
    values = {"budget": ["auto"], **axes}
    found: list[Variant] = []
    for method in dict.fromkeys(["ar", *methods]):
        used = [name for name in _used(method) if name in values]
        combinations = list(itertools.product(*(dict.fromkeys(values[name]) for name in used)))
        # The budget is always told: `auto` is not what the papers' tables show.
        varying = [name for name in used if name == "budget" or len(set(values[name])) > 1]
        for combination in combinations:
            settings = tuple(zip(used, combination, strict=True))
            told = [f"{_SHORT.get(n, n)}={shown(v)}" for n, v in settings if n in varying]
            found.append(Variant(method, settings, " ".join([method, *told])))
    for variant in found:
        variant.config(DecodeConfig(), 0.0)
    return found


def shown(value: Any) -> str:
    """A setting's value as the command line takes it."""
    return next((word for word, v in _SWITCH.items() if v is value), str(value))


def _used(method: str) -> tuple[str, ...]:
    return next((names for known, names in USES.items() if known == method), ())


def parse_sweeps(words: Sequence[str]) -> dict[str, list[Any]]:
    """`budget=4,8 width=4,8`, in one word or several, as setting to values.

    Raises:
        ConfigError: A word is no assignment, or its setting cannot be swept.
    """
    axes: dict[str, list[Any]] = {}
    for word in itertools.chain.from_iterable(text.split() for text in words):
        name, equals, values = word.partition("=")
        name = name.replace("-", "_")
        if not equals or not values:
            raise ConfigError(f"{word!r} is no sweep.", _SWEEP)
        if name not in AXES:
            raise ConfigError(
                f"There is no setting {name!r} to sweep.", f"Sweep {', '.join(AXES)}. {_SWEEP}"
            )
        axes.setdefault(name, []).extend(parse_values(name, values))
    return axes


def parse_values(name: str, text: str) -> list[Any]:
    """A comma-separated list of a setting's values.

    Raises:
        ConfigError: A value is not of the setting's kind.
    """
    words = [word for part in text.split(",") if (word := part.strip())]
    if not words:
        raise ConfigError(f"{name} has no values.", "Separate values with commas, as in 4,8,16.")
    return [_value(name, word) for word in words]


def _value(name: str, word: str) -> Any:
    kind, read = _KINDS.get(name, ("whole number", int))
    try:
        return read(word)
    except (KeyError, ValueError):
        raise ConfigError(
            f"{name} has the value {word!r}, which is no {kind}.",
            "Separate values with commas, as in 4,8,16.",
        ) from None


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a run will measure.

    Attributes:
        variants: What decodes; the first is AR.
        datasets: Name to rows.
        temperatures: Of the target.
        base: Settings all variants share.
        repeats: Times each variant decodes a prompt; the pass of median time counts.
    """

    variants: Sequence[Variant]
    datasets: Mapping[str, Sequence[Row]]
    temperatures: Sequence[float]
    base: DecodeConfig
    repeats: int = 1

    def units(self) -> Iterator[tuple[str, Row, float]]:
        """What is decoded, in order: one prompt of every dataset, then the next of each, so that
        a run stopped early has measured all of them."""
        longest = max((len(rows) for rows in self.datasets.values()), default=0)
        for i in range(longest):
            for name, rows in self.datasets.items():
                for temperature in self.temperatures if i < len(rows) else ():
                    yield name, rows[i], temperature

    def numbered(self) -> Iterator[tuple[int, tuple[str, Row, float]]]:
        """The units, each with its number among those of its data set and temperature: from one
        of these to the next another variant goes first, whatever is measured in between."""
        seen: Counter[tuple[str, float]] = Counter()
        for unit in self.units():
            kind = unit[0], unit[2]
            yield seen[kind], unit
            seen[kind] += 1

    @property
    def size(self) -> int:
        """Number of units."""
        return sum(map(len, self.datasets.values())) * len(self.temperatures)

    def rotated(self, index: int) -> list[Variant]:
        """The variants in the order of the index-th prompt: who is first changes every time."""
        at = index % len(self.variants)
        return [*self.variants[at:], *self.variants[:at]]

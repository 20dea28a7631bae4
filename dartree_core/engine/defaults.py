"""What a model's own files say about how it wants to be decoded."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from dartree_core.config import SamplingConfig
from dartree_core.errors import ConfigError

_SAMPLING = ("temperature", "top_k", "top_p", "min_p")


def eos_ids(model: Any, tokenizer: Any | None) -> frozenset[int]:
    """Ids that end an answer: `generation_config`'s (one or a list), else the model
    configuration's, else the tokenizer's."""
    places = (getattr(model, "generation_config", None), model.config, tokenizer)
    for place in places:
        value = getattr(place, "eos_token_id", None)
        if value is not None:
            return frozenset(i for i in _listed(value) if isinstance(i, int))
    return frozenset()


def sampling_defaults(model: Any) -> SamplingConfig:
    """Sampling settings of the model's `generation_config`: greedy unless it says `do_sample`.

    What cannot be a setting is left out: some files say -1 for "off", as other engines do.
    """
    generation = getattr(model, "generation_config", None)
    if generation is None:
        return SamplingConfig()
    given: dict[str, Any] = {"repetition_penalty": getattr(generation, "repetition_penalty", None)}
    if getattr(generation, "do_sample", False):
        stated = {name: getattr(generation, name, None) for name in _SAMPLING}
        given |= {"temperature": 1.0} | {n: v for n, v in stated.items() if v is not None}
    found = SamplingConfig()
    for name, value in given.items():
        with suppress(ConfigError):
            found = replace(found, **{name: value})
    return found


def _listed(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list | tuple | set | frozenset) else [value]

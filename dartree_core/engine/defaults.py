"""What a model's own files say about how it wants to be decoded."""

from __future__ import annotations

from typing import Any

from dartree_core.config import SamplingConfig

_SAMPLING = ("temperature", "top_k", "top_p", "min_p")


def eos_ids(model: Any, tokenizer: Any | None) -> frozenset[int]:
    """Ids that end an answer: `generation_config`'s (one or a list), else the model
    configuration's, else the tokenizer's."""
    places = (getattr(model, "generation_config", None), model.config, tokenizer)
    for place in places:
        value = getattr(place, "eos_token_id", None)
        if value is not None:
            return frozenset([value] if isinstance(value, int) else value)
    return frozenset()


def sampling_defaults(model: Any) -> SamplingConfig:
    """Sampling settings of the model's `generation_config`: greedy unless it says `do_sample`."""
    generation = getattr(model, "generation_config", None)
    if generation is None:
        return SamplingConfig()
    given: dict[str, Any] = {}
    penalty = getattr(generation, "repetition_penalty", None)
    if penalty:
        given["repetition_penalty"] = float(penalty)
    if getattr(generation, "do_sample", False):
        given["temperature"] = 1.0
        for name in _SAMPLING:
            value = getattr(generation, name, None)
            if value is not None:
                given[name] = value
    return SamplingConfig(**given)

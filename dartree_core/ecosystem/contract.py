"""What `generate` was asked for, as our settings; what they cannot express is refused by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dartree_core.config import SamplingConfig
from dartree_core.ecosystem.rows import Row
from dartree_core.errors import CheckpointError, ConfigError

_MODES = {"greedy_search", "sample"}
_OUTPUTS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
_UNDERSTOOD = {
    *("attention_mask", "position_ids", "use_cache", "logits_to_keep", "return_dict"),
    *("cache", "past_key_values", "cache_position"),
}
"""Keywords for the model's forward pass that say nothing our own pass does not say anyway."""


def refuse_unsupported(
    model: Any,
    generation: Any,
    model_kwargs: Mapping[str, Any],
    *,
    synced_gpus: bool,
    assistant: Any = None,
) -> None:
    """Check everything but processors, criteria and rows.

    Raises:
        ConfigError: A setting or keyword cannot be honoured.
        CheckpointError: The model is no decoder-only language model.
    """
    if getattr(model.config, "is_encoder_decoder", False):
        raise CheckpointError(
            f"{type(model).__name__} is an encoder-decoder model; draft trees need a decoder-only "
            "one.",
            "Call generate without custom_generate.",
        )
    if model.training:
        raise ConfigError("The model is in training mode.", "Call model.eval() first.")
    if synced_gpus:
        raise ConfigError(
            "synced_gpus (ZeRO stage 3, FSDP) needs every process to run the same passes; trees "
            "differ.",
            "Gather the weights on each device, or leave custom_generate out.",
        )
    mode = str(getattr(generation.get_generation_mode(assistant), "value", ""))
    if mode not in _MODES:
        raise ConfigError(
            f"custom_generate decodes greedily or samples; these settings ask for {mode}.",
            "Leave out num_beams, penalty_alpha, dola_layers, prompt_lookup_num_tokens and so on.",
        )
    wanted = [name for name in _OUTPUTS if getattr(generation, name, None)]
    if wanted and generation.return_dict_in_generate:
        raise ConfigError(
            f"{', '.join(wanted)} cannot be given: a tree's pass has them for every node.",
            "Score the returned sequences with one forward pass instead.",
        )
    if getattr(generation, "cache_implementation", None) == "quantized":
        raise ConfigError(
            "cache_implementation='quantized' changes what the model says and is not supported.",
            "Leave it out.",
        )
    foreign = [k for k, v in model_kwargs.items() if v is not None and k not in _UNDERSTOOD]
    if foreign:
        raise ConfigError(
            f"custom_generate reads token ids only, but got {', '.join(sorted(foreign))}.",
            "Leave them out, or call generate without custom_generate.",
        )
    for name in ("cache", "past_key_values"):
        cache = model_kwargs.get(name)
        if cache is not None and cache.get_seq_length() > 0:
            raise ConfigError(
                f"{name} already holds {cache.get_seq_length()} positions; custom_generate keeps "
                "its own cache.",
                "Give the whole prompt and no cache.",
            )


def in_step(model: Any) -> bool:
    """True where every process has to run the same passes: `generate` finds out like this."""
    from transformers.generation import utils as hf

    there = torch.distributed.is_available() and torch.distributed.is_initialized()
    several = there and torch.distributed.get_world_size() > 1
    return several and bool(hf.is_deepspeed_zero3_enabled() or hf.is_fsdp_managed_module(model))


def read_sampling(
    processors: Sequence[Any], generation: Any, seed: int, rows: Sequence[Row]
) -> SamplingConfig:
    """Settings that do what this list of logits processors does.

    Raises:
        ConfigError: A processor is of a kind, or at a place, that they cannot express.
    """
    from transformers import generation as hf

    # The order in which `Chooser` applies them, which is transformers' own.
    known: dict[type[Any], str] = {
        hf.RepetitionPenaltyLogitsProcessor: "repetition_penalty",
        hf.TemperatureLogitsWarper: "temperature",
        hf.TopKLogitsWarper: "top_k",
        hf.TopPLogitsWarper: "top_p",
        hf.MinPLogitsWarper: "min_p",
    }
    order = list(known)
    found: dict[str, Any] = {}
    last = -1
    for processor in processors:
        kind = type(processor)
        if kind is hf.LogitNormalization:
            continue  # shifts all scores of a row alike: no choice depends on it
        if kind not in known:
            raise ConfigError(
                f"The logits processor {kind.__name__} is not supported by custom_generate.",
                "Leave out the setting that asks for it; repetition_penalty, temperature, top_k, "
                "top_p and min_p are honoured.",
            )
        place = order.index(kind)
        if place <= last:
            raise ConfigError(
                f"{kind.__name__} is given twice, or behind one that transformers applies later.",
                "Set repetition_penalty, temperature, top_k, top_p and min_p as settings of "
                "generate.",
            )
        last = place
        _check_plain(processor, rows)
        name = known[kind]
        found[name] = getattr(processor, "penalty" if place == 0 else name)
    if not generation.do_sample:
        # None of the others moves the argmax.
        return SamplingConfig(repetition_penalty=found.get("repetition_penalty", 1.0))
    if found.get("top_p", 1.0) == 0.0:
        raise ConfigError("top_p is 0, but it is a probability mass.", "Use do_sample=False.")
    return SamplingConfig(**{"temperature": 1.0, **found, "seed": seed})


def _check_plain(processor: Any, rows: Sequence[Row]) -> None:
    """Refuse options of a processor that have no counterpart here."""
    name = type(processor).__name__
    if getattr(processor, "filter_value", -torch.inf) != -torch.inf:
        raise ConfigError(f"{name} has a filter_value of its own.", "Leave it at -inf.")
    if getattr(processor, "min_tokens_to_keep", 1) != 1:
        raise ConfigError(f"{name} has min_tokens_to_keep.", "Leave it at 1.")
    ignored = getattr(processor, "prompt_ignore_length", None)
    if isinstance(ignored, Tensor):  # made by `generate`: the padding, which no row here has
        ignored = any(n != row.padding for n, row in zip(ignored.tolist(), rows, strict=True))
    if ignored:
        raise ConfigError(
            f"{name} ignores part of the prompt (prompt_ignore_length).", "Leave it out."
        )

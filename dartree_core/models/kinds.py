"""Which kinds of models are refused before anything is loaded, each by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dartree_core.errors import CheckpointError

_SENSES = ("vision_config", "audio_config", "speech_config", "vision_tower")
_BY_ROW = {"bloom", "mpt", "gpt_neo"}
"""Model types whose attention counts distance by row: siblings of a tree share a position."""
_PACKAGES = {
    "aqlm": "aqlm",
    "awq": "gptqmodel",
    "bitsandbytes": "bitsandbytes",
    "compressed-tensors": "compressed-tensors",
    "eetq": "eetq",
    "gptq": "gptqmodel",
    "hqq": "hqq",
    "quanto": "optimum-quanto",
    "torchao": "torchao",
}


def refuse_kind(config: Mapping[str, Any]) -> None:
    """Refuse what is no decoder over text with positions that can be set.

    Args:
        config: A model's `config.json`.

    Raises:
        CheckpointError: Names the architecture, and says what to use.
    """
    kind = str(config.get("model_type", ""))
    name = str((config.get("architectures") or [kind])[0])
    if config.get("is_encoder_decoder"):
        raise CheckpointError(
            f"{name} is an encoder-decoder model.", "Use a decoder-only language model."
        )
    senses = [key for key in _SENSES if config.get(key)]
    if senses and not _reads_text(kind):
        raise CheckpointError(
            f"{name} is a multimodal model ({senses[0]}) that transformers has no text-only form "
            "of.",
            "Use the text-only model of the same family.",
        )
    attention = config.get("attn_config") or {}
    if kind in _BY_ROW or config.get("alibi") or attention.get("alibi"):
        raise CheckpointError(
            f"{name} counts distance by row (ALiBi or local attention), not by position, so a "
            "tree's siblings would push each other away.",
            "Use a target with rotary or learned positions.",
        )


def quantisation(config: Mapping[str, Any]) -> str:
    """How the weights of a `config.json` are quantised, or ""."""
    found = config.get("quantization_config") or {}
    return str(found.get("quant_method") or ("quantised" if found else ""))


def package_for(method: str) -> str:
    """The package that transformers needs for a quantisation, or "" where it needs none."""
    return _PACKAGES.get(method, "")


def _reads_text(kind: str) -> bool:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

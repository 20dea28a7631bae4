"""One row for every family of targets that is promised to work: small, random, saved to disk.

Rows are loaded as users load them, from a folder through `load_target`.
"""

from __future__ import annotations

import functools
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers as hf

from dartree_core.models import Target, load_target
from tests.core import tiny

WINDOW = 5
_WINDOWED = {"sliding_window": WINDOW}
_ALTERNATING = {
    **_WINDOWED,
    "layer_types": ["sliding_attention", "full_attention"] * (tiny.LAYERS // 2),
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_MLA = {
    "q_lora_rank": 16,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 16,
    "num_key_value_heads": 4,
    "first_k_dense_replace": 1,
}
_NO_HEAD_DIM = {"head_dim": None}
_GEMMA = {**_ALTERNATING, "query_pre_attn_scalar": 8}


@dataclass(frozen=True)
class Family:
    """How to build a family's tiny model.

    Attributes:
        model: Class of the causal language model, by its name in transformers.
        config: Class of its configuration.
        changes: To the common shape; None drops a field.
        lean: Runs on the lean path, too.
        eager: Its attention is none that SDPA computes.
        window: Width of its sliding window, or 0.
    """

    model: str
    config: str
    changes: dict[str, Any]
    lean: bool = False
    eager: bool = False
    window: int = 0


FAMILIES = {
    "llama": Family("LlamaForCausalLM", "LlamaConfig", {}, lean=True),
    "llama3-scaled": Family(
        "LlamaForCausalLM", "LlamaConfig", {"rope_parameters": _LLAMA3}, lean=True
    ),
    "qwen2.5": Family(
        "Qwen2ForCausalLM", "Qwen2Config", {**_NO_HEAD_DIM, "tie_word_embeddings": True}, lean=True
    ),
    "qwen3": Family("Qwen3ForCausalLM", "Qwen3Config", {}, lean=True),
    "mistral": Family("MistralForCausalLM", "MistralConfig", {"sliding_window": None}, lean=True),
    "mistral-windowed": Family("MistralForCausalLM", "MistralConfig", _WINDOWED, window=WINDOW),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        "Gemma2Config",
        {**_GEMMA, "attn_logit_softcapping": 4.0, "final_logit_softcapping": 6.0},
        eager=True,
        window=WINDOW,
    ),
    "gemma3": Family("Gemma3ForCausalLM", "Gemma3TextConfig", _GEMMA, window=WINDOW),
    "gpt-oss": Family(
        "GptOssForCausalLM",
        "GptOssConfig",
        {**_ALTERNATING, "num_local_experts": 4, "num_experts_per_tok": 2},
        eager=True,
        window=WINDOW,
    ),
    "mixtral": Family(
        "MixtralForCausalLM", "MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}
    ),
    "qwen3-moe": Family("Qwen3MoeForCausalLM", "Qwen3MoeConfig", _MOE),
    "deepseek-v3": Family("DeepseekV3ForCausalLM", "DeepseekV3Config", {**_NO_HEAD_DIM, **_MLA}),
    "phi3-windowed": Family(
        "Phi3ForCausalLM", "Phi3Config", {**_WINDOWED, "pad_token_id": 0}, window=WINDOW
    ),
    "gpt2": Family(
        "GPT2LMHeadModel",
        "GPT2Config",
        {"n_embd": tiny.HIDDEN, "n_layer": tiny.LAYERS, "n_head": 4, "n_positions": 128}
        | dict.fromkeys(
            [
                *("hidden_size", "num_hidden_layers", "num_attention_heads", "head_dim"),
                *("num_key_value_heads", "max_position_embeddings", "intermediate_size"),
            ]
        ),
    ),
}
LEAN = [name for name, family in FAMILIES.items() if family.lean]


def build(name: str) -> Any:
    """The family's random model."""
    family = FAMILIES[name]
    shape = {k: v for k, v in (tiny._SHAPE | family.changes).items() if k not in family.changes}
    shape |= {k: v for k, v in family.changes.items() if v is not None or k == "sliding_window"}
    torch.manual_seed(sorted(FAMILIES).index(name))
    config = getattr(hf, family.config)(**shape)
    model = getattr(hf, family.model)(config)
    for module in model.modules():  # sinks and the like start from zero or from garbage
        for key, parameter in module.named_parameters(recurse=False):
            if key == "sinks":
                torch.nn.init.normal_(parameter)
    return model.eval()


def save(model: Any, into: Path) -> Path:
    model.save_pretrained(into)
    return into


@functools.cache
def folder(name: str) -> Path:
    """Where the family's model is saved, for as long as the process lives."""
    place = tempfile.TemporaryDirectory(prefix="dartree-family-")
    _KEPT.append(place)
    return save(build(name), Path(place.name))


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


@functools.cache
def target(name: str, *, lean: bool = False) -> Target:
    """As `load_target` gives it, in float32."""
    return load_target(folder(name), device=torch.device("cpu"), dtype=torch.float32, lean=lean)

"""Configurations of public drafters, and tiny checkpoints in the same formats.

The fields are those of the published files (and of the trainers that write them); shapes are
replaced by tiny ones before anything is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dartree_core.draft.spec import DraftSpec
from dartree_core.models import Target
from tests.core import tiny

LAYERS: dict[str, Any] = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "layer_types": ["full_attention"] * 5,
    "max_position_embeddings": 40960,
    "max_window_layers": 5,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 5,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
SLIDING: dict[str, Any] = {
    "layer_types": ["sliding_attention"] * 4 + ["full_attention"],
    "sliding_window": 2048,
    "use_sliding_window": True,
}
ROPE = {"rope_type": "default", "rope_theta": 1000000}

V1_OLD: dict[str, Any] = {
    **LAYERS,
    "architectures": ["DFlashDraftModel"],
    "block_size": 16,
    "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
    "num_target_layers": 36,
    "rope_scaling": None,
    "rope_theta": 1000000,
}
"""The first published generation, 8B: block size at the top, no head."""

V1_NEWER: dict[str, Any] = {
    **LAYERS,
    **SLIDING,
    "architectures": ["DFlashDraftModel"],
    "dflash_config": {
        "block_size": 16,
        "mask_token_id": 248070,
        "target_layer_ids": [1, 16, 31, 46, 61],
    },
    "num_target_layers": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000},
    "vocab_size": 248320,
}
"""Block size inside `dflash_config`, sliding layers, `rope_parameters`."""

DOMINO_8B: dict[str, Any] = {
    **V1_OLD,
    "dflash_config": {
        **V1_OLD["dflash_config"],
        "projector_type": "domino",
        "emb_dim": 256,
        "gru_hidden_dim": 1024,
        "pure_draft_prefix_len": 1,
        "shift_label": True,
    },
}

DFLASH2: dict[str, Any] = {
    **LAYERS,
    **SLIDING,
    "architectures": ["DFlash2DraftModel"],
    "dflash_config": {
        **V1_NEWER["dflash_config"],
        "conv_kernel_size": 2,
        "conv_group_size": 16,
        "selector_rank": 256,
        "selector_top_k": 16,
        "final_logit_softcapping": 20.0,
        "output_multiplier": 0.196,
    },
    "num_target_layers": 64,
    "rope_parameters": ROPE,
}

DSPARK: dict[str, Any] = {
    **LAYERS,
    "architectures": ["Qwen3DSparkModel"],
    "block_size": 7,
    "confidence_head_with_markov": True,
    "enable_confidence_head": True,
    "markov_head_type": "vanilla",
    "markov_rank": 256,
    "mask_token_id": 151669,
    "num_target_layers": 36,
    "rope_parameters": ROPE,
    "target_layer_ids": [1, 9, 17, 25, 33],
}
"""DeepSpec's layout: everything at the top level, tables stored."""

DSPARK_SPECFORGE: dict[str, Any] = {
    **V1_OLD,
    "architectures": ["DSparkDraftModel"],
    "block_size": 7,
    "dflash_config": {
        **V1_OLD["dflash_config"],
        "attention_mode": "gqa",
        "confidence_head_alpha": 1.0,
        "confidence_head_with_markov": True,
        "enable_confidence_head": True,
        "markov_head_type": "rnn",
        "markov_rank": 256,
        "projector_type": "dspark",
    },
}


def _speculators(kind: str, proposed: int, **fields: Any) -> dict[str, Any]:
    return {
        "architectures": [f"{kind}Speculator"],
        "aux_hidden_state_layer_ids": [2, 10, 18, 26, 34],
        "block_size": 8,
        "draft_vocab_size": 151936,
        "mask_token_id": 151669,
        "speculators_config": {
            "algorithm": kind.lower(),
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": proposed}],
            "verifier": {
                "architectures": ["Qwen3ForCausalLM"],
                "name_or_path": "Qwen/Qwen3-8B",
            },
        },
        "speculators_model_type": kind.lower(),
        "speculators_version": "0.9.0",
        "target_hidden_size": None,
        "transformer_layer_config": {**LAYERS, "rope_parameters": ROPE},
        **fields,
    }


SPECULATORS_DFLASH = _speculators(
    "DFlash", 7, sample_from_anchor=False, sliding_window_non_causal=False, draft_vocab_size=32000
)
SPECULATORS_DSPARK = _speculators(
    "DSpark",
    8,
    confidence_head_with_markov=True,
    enable_confidence_head=True,
    markov_head_type="gated",
    markov_rank=256,
    sample_from_anchor=True,
    sliding_window_non_causal=False,
    transformer_layer_config={**LAYERS, **SLIDING, "rope_parameters": ROPE},
)
SPECULATORS_DFLASH2 = _speculators(
    "DFlash2",
    7,
    conv_kernel_size=2,
    conv_group_size=16,
    selector_rank=256,
    selector_top_k=16,
    sample_from_anchor=False,
    sliding_window_non_causal=True,
    transformer_layer_config={**LAYERS, **SLIDING, "rope_parameters": ROPE},
)

PUBLIC: Mapping[str, dict[str, Any]] = {
    "dflash-v1": V1_OLD,
    "dflash-v1-sliding": V1_NEWER,
    "domino": DOMINO_8B,
    "dflash2": DFLASH2,
    "dspark-deepspec": DSPARK,
    "dspark-specforge": DSPARK_SPECFORGE,
    "speculators-dflash": SPECULATORS_DFLASH,
    "speculators-dspark": SPECULATORS_DSPARK,
    "speculators-dflash2": SPECULATORS_DFLASH2,
}

_SMALL: dict[str, Any] = {
    "hidden_size": tiny.HIDDEN,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": tiny.VOCAB,
    "mask_token_id": tiny.VOCAB - 1,
    "target_layer_ids": [0, 2],
    "aux_hidden_state_layer_ids": [1, 3],
    "num_target_layers": tiny.LAYERS,
    "emb_dim": 8,
    "gru_hidden_dim": 12,
    "markov_rank": 6,
    "selector_rank": 5,
    "selector_top_k": 7,
    "conv_group_size": 8,
}
REDUCED = [2 * i + 1 for i in range(tiny.VOCAB // 2)]
"""Target ids of the tiny reduced vocabulary."""


def shrunk(config: Mapping[str, Any]) -> dict[str, Any]:
    """The same format with tiny shapes, for `tiny.target("llama")`."""
    out: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            out[name] = shrunk(value)
        elif name == "draft_vocab_size":
            out[name] = tiny.VOCAB if value == LAYERS["vocab_size"] else len(REDUCED)
        elif name == "layer_types":
            out[name] = [value[0], value[-1]]
        elif name == "sliding_window":
            out[name] = value and 4
        else:
            out[name] = _SMALL.get(name, value)
    return out


def stored(config: Mapping[str, Any], target: Target) -> dict[str, Tensor]:
    """Tensors that a format stores beside the drafter's own weights."""
    if "speculators_config" in config:
        if config["draft_vocab_size"] != len(REDUCED):
            return {}
        ids = torch.tensor(REDUCED)
        known = torch.zeros(tiny.VOCAB, dtype=torch.bool)
        known[ids] = True
        return {
            "d2t": ids - torch.arange(len(ids)),
            "t2d": known,
            "lm_head.weight": target.output_weight.detach()[ids].clone(),
            "verifier_norm.weight": torch.ones(tiny.HIDDEN),
        }
    if config.get("architectures") == DSPARK["architectures"]:
        return {
            "embed_tokens.weight": target.embedding.weight.detach().clone(),
            "lm_head.weight": target.output_weight.detach().clone(),
        }
    return {}


def write(folder: Path, config: Mapping[str, Any], target: Target, *, seed: int = 0) -> Path:
    """A tiny checkpoint in the format of `config`, itself shrunk already."""
    bare = ("predecessor_codebook.weight", "successor_codebook.weight")
    return tiny.save_draft(
        folder,
        dict(config),
        seed=seed,
        rename=lambda n: n.removesuffix(".weight") if n.endswith(bare) else n,
        extra=stored(config, target),
    )


def spec_of(config: Mapping[str, Any], **changes: Any) -> DraftSpec:
    """Read with some fields of the top level changed, or dropped with `...`."""
    fields = {**config, **changes}
    return DraftSpec.from_config({k: v for k, v in fields.items() if v is not ...})


def inner(config: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """With some fields of `dflash_config` changed, or dropped with `...`."""
    fields = {**config["dflash_config"], **changes}
    return {**config, "dflash_config": {k: v for k, v in fields.items() if v is not ...}}

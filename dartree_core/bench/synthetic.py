"""Models of published shapes with random weights, made on the device: costs without downloads.

What a pass costs depends on shapes alone. What is accepted does not: random drafters are nearly
always wrong, so nothing here says how many tokens a round emits.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from dartree_core.draft.checkpoint import DraftCheckpoint
from dartree_core.draft.dflash import DFlashBackbone
from dartree_core.draft.drafter import Drafter
from dartree_core.draft.heads import make_head
from dartree_core.draft.spec import DraftSpec
from dartree_core.engine import Decoder
from dartree_core.errors import ConfigError
from dartree_core.models.lean import LeanTarget

_QWEN3: dict[str, Any] = {
    "vocab_size": 151936,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-6,
}
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "tiny": _QWEN3
    | {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    },
    "qwen3-4b": _QWEN3
    | {"hidden_size": 2560, "intermediate_size": 9728, "tie_word_embeddings": True},
    "qwen3-8b": _QWEN3
    | {"hidden_size": 4096, "intermediate_size": 12288, "tie_word_embeddings": False},
}
"""Targets, as fields of a Qwen3 configuration."""
_DRAFTERS: Mapping[str, Mapping[str, Any]] = {
    "tiny": {"layers": 2, "taps": [0, 2], "mask": 95, "block": 6, "state": 12, "embed": 8},
    "qwen3": {
        "layers": 5,
        "taps": [1, 9, 17, 25, 33],
        "mask": 151669,
        "block": 16,
        "state": 1024,
        "embed": 256,
    },
}
"""The public DFlash and Domino drafters for them."""


def synthetic_target(
    shape: str, device: torch.device, dtype: torch.dtype, *, graphs: bool | None = None
) -> LeanTarget:
    """A target of a published shape.

    Args:
        shape: A name in `SHAPES`.
        device: Where weights are made.
        dtype: Of the weights.
        graphs: As in `LeanTarget`.

    Raises:
        ConfigError: There is no such shape.
    """
    from transformers import AutoModelForCausalLM, Qwen3Config

    if shape not in SHAPES:
        raise ConfigError(f"There is no shape {shape!r}.", f"Use one of {', '.join(SHAPES)}.")
    fields = dict(SHAPES[shape])
    rope = {"rope_type": "default", "rope_theta": fields.pop("rope_theta")}
    config = Qwen3Config(**fields, rope_parameters=rope, eos_token_id=None, bos_token_id=None)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    model.config.architectures = ["Qwen3ForCausalLM"]
    model = model.to(device).eval().requires_grad_(False)
    return LeanTarget(model, graphs=graphs, label=f"synthetic {shape}")


def synthetic_drafter(shape: str, target: LeanTarget, *, lean: bool = True) -> Drafter:
    """A Domino drafter of the public shape for `target`; `lean` as in `Drafter`."""
    given = _DRAFTERS["tiny" if shape == "tiny" else "qwen3"]
    config = {
        **SHAPES[shape],
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "num_hidden_layers": given["layers"],
        "num_target_layers": target.num_layers,
        "block_size": given["block"],
        "dflash_config": {
            "projector_type": "domino",
            "mask_token_id": given["mask"],
            "target_layer_ids": given["taps"],
            "emb_dim": given["embed"],
            "gru_hidden_dim": given["state"],
            "pure_draft_prefix_len": 1,
            "shift_label": False,
        },
    }
    spec = DraftSpec.from_config(config)
    with torch.device(target.device):
        backbone, head = DFlashBackbone(spec), make_head(spec)
    for module in (backbone, head):
        module.requires_grad_(False).eval()
    checkpoint = DraftCheckpoint(spec, backbone, head, None, Path(f"synthetic-{shape}"))
    return Drafter(checkpoint, target, label=f"synthetic drafter for {shape}", lean=lean)


def synthetic_decoder(
    shape: str, device: torch.device, dtype: torch.dtype, *, graphs: bool | None = None
) -> Decoder:
    """Target and drafter of a shape; arguments as in `synthetic_target`."""
    torch.manual_seed(0)
    target = synthetic_target(shape, device, dtype, graphs=graphs)
    return Decoder(target, synthetic_drafter(shape, target))

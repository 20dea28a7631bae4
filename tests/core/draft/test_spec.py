"""Every public generation of drafter configuration is read rightly or refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from dartree_core.draft.spec import DraftSpec, default_layer_ids
from dartree_core.errors import CheckpointError

V1_OLD: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "block_size": 16,
    "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
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
    "num_target_layers": 36,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
"""The first published generation, 8B: block size at the top, no head."""

V1_NEWER: dict[str, Any] = {
    **{k: v for k, v in V1_OLD.items() if k not in ("block_size", "rope_theta", "rope_scaling")},
    "dflash_config": {
        "block_size": 16,
        "mask_token_id": 248070,
        "target_layer_ids": [1, 16, 31, 46, 61],
    },
    "layer_types": ["sliding_attention"] * 4 + ["full_attention"],
    "num_target_layers": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000},
    "sliding_window": 2048,
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


def spec_of(config: dict[str, Any], **changes: Any) -> DraftSpec:
    config = {**config, **changes}
    return DraftSpec.from_config({k: v for k, v in config.items() if v is not ...})


def inner(config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    fields = {**config["dflash_config"], **changes}
    return {**config, "dflash_config": {k: v for k, v in fields.items() if v is not ...}}


def test_first_generation() -> None:
    spec = spec_of(V1_OLD)
    assert (spec.hidden_size, spec.intermediate_size, spec.num_layers) == (4096, 12288, 5)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim) == (32, 8, 128)
    assert (spec.block_size, spec.mask_token_id) == (16, 151669)
    assert spec.target_layer_ids == (1, 9, 17, 25, 33)
    assert spec.num_target_layers == 36
    assert spec.windows == (None,) * 5
    assert spec.rope == {"rope_theta": 1e6, "rope_scaling": None}
    assert (spec.head, spec.prefix_len, spec.shift_label) == ("none", 0, False)
    assert spec.vocab_size == spec.draft_vocab_size == 151936
    assert (spec.num_slots(), spec.num_slots(8)) == (15, 7)


def test_block_size_inside_dflash_config_and_sliding_layers() -> None:
    spec = spec_of(V1_NEWER)
    assert (spec.block_size, spec.mask_token_id) == (16, 248070)
    assert spec.windows == (2048,) * 4 + (None,)
    assert spec.rope == {"rope_theta": 1e7, "rope_scaling": None}


def test_domino_head() -> None:
    spec = spec_of(DOMINO_8B)
    assert (spec.head, spec.head_dim_embed, spec.head_dim_state) == ("domino", 256, 1024)
    assert (spec.prefix_len, spec.shift_label) == (1, True)
    assert (spec.num_slots(), spec.num_slots(8)) == (16, 8)


def test_older_name_of_the_domino_head() -> None:
    assert spec_of(inner(DOMINO_8B, projector_type="causal_v5")) == spec_of(DOMINO_8B)


def test_domino_fields_at_the_top_level() -> None:
    config = inner(DOMINO_8B, projector_type=..., emb_dim=..., gru_hidden_dim=...)
    config |= {"projector_type": "domino", "emb_dim": 256, "gru_hidden_dim": 1024}
    assert spec_of(config) == spec_of(DOMINO_8B)


def test_gru_width_defaults_to_the_embedding_width() -> None:
    assert spec_of(inner(DOMINO_8B, gru_hidden_dim=...)).head_dim_state == 256


def test_domino_without_its_width_is_refused() -> None:
    with pytest.raises(CheckpointError, match="'emb_dim'"):
        spec_of(inner(DOMINO_8B, emb_dim=...))


def test_text_config_of_a_multimodal_drafter() -> None:
    shapes = (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "rope_theta",
        "layer_types",
    )
    config = {k: v for k, v in V1_OLD.items() if k not in shapes}
    config["text_config"] = {k: V1_OLD[k] for k in shapes}
    assert spec_of(config) == spec_of(V1_OLD)


def test_head_dim_defaults_to_an_even_share() -> None:
    assert spec_of(V1_OLD, head_dim=...).head_dim == 128


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "linear"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 5e5}}, "yarn"),
    ],
)
def test_scaled_positions_keep_their_scaling(fields: dict[str, Any], kind: str) -> None:
    scaling = spec_of(V1_OLD, **fields).rope["rope_scaling"]
    assert scaling.get("rope_type", scaling.get("type")) == kind


def test_reduced_draft_vocabulary() -> None:
    spec = spec_of(DOMINO_8B, draft_vocab_size=32000)
    assert (spec.vocab_size, spec.draft_vocab_size) == (151936, 32000)


@pytest.mark.parametrize(
    ("layers", "target", "expected"),
    [(1, 36, [18]), (5, 36, [1, 9, 17, 25, 33]), (4, 30, [1, 10, 18, 27]), (2, 28, [1, 25])],
)
def test_default_layer_ids(layers: int, target: int, expected: list[int]) -> None:
    assert default_layer_ids(layers, target) == expected
    config = inner(V1_OLD, target_layer_ids=...) | {
        "num_hidden_layers": layers,
        "num_target_layers": target,
        "layer_types": ["full_attention"] * layers,
    }
    assert spec_of(config).target_layer_ids == tuple(expected)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "dflash2": ({**V1_OLD, "architectures": ["DFlash2DraftModel"]}, "DFlash2"),
    "dflash2-selector": (inner(V1_OLD, selector_rank=64, selector_top_k=8), "selector_rank"),
    "dflash2-convolution": (inner(V1_OLD, conv_width=4), "conv_width"),
    "dflash2-softcap": (inner(V1_OLD, final_logit_softcapping=30.0), "final_logit_softcapping"),
    "dflash2-multiplier": (inner(V1_OLD, output_multiplier=0.5), "output_multiplier"),
    "ubtree": ({**V1_OLD, "architectures": ["UBTreeDraftModel"]}, "UBTree"),
    "muse-glimmer": (
        {**V1_OLD, "architectures": ["MuseGlimmerAssistantForCausalLM"]},
        "muse_glimmer",
    ),
    "muse-glimmer-by-type": (
        {**V1_OLD, "architectures": [], "model_type": "muse_glimmer_assistant"},
        "muse_glimmer",
    ),
    "dspark": (inner(V1_OLD, projector_type="dspark", markov_rank=256), "'dspark'"),
    "speculators": ({"speculators_model_type": "eagle3"}, "speculators format .eagle3."),
    "attention-biases": ({**V1_OLD, "attention_bias": True}, "attention biases"),
    "activation": ({**V1_OLD, "hidden_act": "gelu"}, "'gelu'"),
    "foreign-layers": (
        {**V1_OLD, "layer_types": ["linear_attention"] * 5},
        "'linear_attention'",
    ),
    "window-unsaid": ({**V1_OLD, "layer_types": ["sliding_attention"] * 5}, "sliding_window=None"),
    "too-few-layer-types": ({**V1_OLD, "layer_types": ["full_attention"]}, "1 layer_types for 5"),
    "part-rotary": (
        {**V1_OLD, "rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 0.25}},
        "partial_rotary_factor",
    ),
    "position-base-per-kind": (
        {
            **V1_OLD,
            "rope_parameters": {
                "full_attention": {"rope_theta": 1e6},
                "sliding_attention": {"rope_theta": 1e4},
            },
        },
        "per kind of attention",
    ),
    "no-block-size": ({k: v for k, v in V1_OLD.items() if k != "block_size"}, "'block_size'"),
    "no-mask": (inner(V1_OLD, mask_token_id=...), "'mask_token_id'"),
    "no-layers": (inner(V1_OLD, target_layer_ids=[]), "target_layer_ids"),
    "no-layer-ids": (
        inner({k: v for k, v in V1_OLD.items() if k != "num_target_layers"}, target_layer_ids=...),
        "num_target_layers",
    ),
    "plain-model": (
        {"architectures": ["Qwen3ForCausalLM"], "hidden_size": 64},
        "config.json has no",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_honoured_is_refused_by_name(name: str) -> None:
    config, message = REFUSED[name]
    with pytest.raises(CheckpointError, match=message) as error:
        DraftSpec.from_config(config)
    assert error.value.remedy


def test_layer_types_left_out_follow_the_window_switch() -> None:
    """As transformers derives them: the last layers slide, from `max_window_layers` on."""
    config = {k: v for k, v in V1_OLD.items() if k != "layer_types"}
    config |= {"sliding_window": 512, "max_window_layers": 3}
    assert spec_of(config).windows == (None,) * 5
    assert spec_of(config, use_sliding_window=True).windows == (None, None, None, 512, 512)

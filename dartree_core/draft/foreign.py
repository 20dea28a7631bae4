"""Drafters this version does not load, refused by name with what they would need.

Reading such a file as the nearest kind it resembles would draft badly without a word: the target
verifies everything, so the text stays right and only the speed is gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dartree_core.draft.fields import Fields
from dartree_core.errors import CheckpointError

_REMEDY = "Use a DFlash, DFlash2, Domino or DSpark drafter over Qwen3-style layers."

_KINDS = {
    "ubtree": "a UBTree drafter: it needs a unigram proposer with a parallel bigram selector",
    "museglimmerassistant": "a muse_glimmer assistant: its tensors have other names and layouts",
    "muse_glimmer_assistant": "a muse_glimmer assistant: its tensors have other names and layouts",
    "qwen35dspark": "a DSpark drafter with gated Qwen3.5 attention and offset norms",
    "qwen3_5": "over Qwen3.5 layers: they need gated attention and norms stored as offsets",
    "gemma4": "over Gemma 4 layers: they need shared keys and values and four norms a layer",
    "deepseek_v4": "part of a DeepSeek-V4 model: it needs latent attention and experts",
    "eagle": "an EAGLE drafter: it is autoregressive over features, not a block drafter",
}
"""By a part of the architecture's or model type's name, in lower case."""

_SWITCHES = {
    "attention_bias": "biases in its attention",
    "attention_sink_bias": "a learned attention sink per head",
    "log_snr_conditioning": "embeddings conditioned on a noise level",
    "enable_qwen35_gated_q_proj": "gated query projections",
    "use_aux_hidden_norms": "norms on its context features",
}
"""Fields that, when set, ask for what is missing here."""

_KNOWN_INNER = frozenset(
    {
        "attention_mode",
        "block_size",
        "causal",
        "confidence_head_with_markov",
        "conv_group_size",
        "conv_kernel_size",
        "emb_dim",
        "enable_confidence_head",
        "final_logit_softcapping",
        "gru_hidden_dim",
        "input_embedding_scale",
        "is_causal",
        "markov_head_type",
        "markov_rank",
        "mask_token_id",
        "num_target_layers",
        "output_multiplier",
        "projector_type",
        "pure_draft_prefix_len",
        "sample_from_anchor",
        "selector_rank",
        "selector_top_k",
        "shift_label",
        "target_layer_ids",
    }
)
"""Fields of `dflash_config` that are read."""

_TRAINING = (
    "loss_",
    "lambda_",
    "dpace_",
    "dspark_",
    "num_anchors",
    "max_anchors",
    "objective_",
    "confidence_head_alpha",
    "attention_backend",
)
"""Fields of `dflash_config` about training alone, by how they begin."""


def refuse_foreign(fields: Fields) -> None:
    """Refuse what this version cannot honour.

    Raises:
        CheckpointError: Naming the kind or the field, and what is missing.
    """
    for kind in fields.kinds:
        for part, what in _KINDS.items():
            if part in kind.lower():
                raise _unloadable(f"The drafter ({kind}) is {what}, which this version lacks.")
    for name, what in _SWITCHES.items():
        if fields(name, None):
            raise _unloadable(
                f"The drafter's config.json sets {name!r}: it needs {what}, which this version "
                "lacks."
            )
    if fields("rope_is_neox_style", True) is False:
        raise _unloadable(
            "The drafter's config.json says 'rope_is_neox_style': false; interleaved rotary "
            "positions are not supported."
        )
    activation = fields("hidden_act", "silu")
    if activation != "silu":
        raise _unloadable(f"The drafter uses the activation {activation!r}; only 'silu' is known.")
    mode = fields("attention_mode", "gqa")
    if mode not in ("gqa", "mha"):
        raise _unloadable(f"The drafter's attention_mode is {mode!r}; only gqa and mha are known.")
    _refuse_unknown(fields.inner)


def _refuse_unknown(inner: Mapping[str, Any]) -> None:
    for name, value in inner.items():
        if name in _KNOWN_INNER or name.startswith(_TRAINING) or not value:
            continue
        raise CheckpointError(
            f"The drafter's config.json sets dflash_config.{name}, whose meaning this version "
            "does not know.",
            "If it does not change what the drafter computes, remove it from config.json.",
        )


def _unloadable(message: str) -> CheckpointError:
    return CheckpointError(message, _REMEDY)

"""Every public generation of drafter configuration is read rightly or refused by name."""

from __future__ import annotations

import contextlib
import copy
import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dartree_core.draft import attention
from dartree_core.draft.spec import DraftSpec, default_layer_ids
from dartree_core.errors import CheckpointError
from tests.core.drafters import (
    DFLASH2,
    DOMINO_8B,
    DSPARK,
    DSPARK_SPECFORGE,
    PUBLIC,
    SPECULATORS_DFLASH,
    SPECULATORS_DFLASH2,
    SPECULATORS_DSPARK,
    V1_NEWER,
    V1_OLD,
    inner,
    spec_of,
)


def test_first_generation() -> None:
    spec = spec_of(V1_OLD)
    assert (spec.hidden_size, spec.intermediate_size, spec.num_layers) == (4096, 12288, 5)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim) == (32, 8, 128)
    assert (spec.block_size, spec.mask_token_id) == (16, 151669)
    assert spec.target_layer_ids == (1, 9, 17, 25, 33)
    assert spec.num_target_layers == 36
    assert (spec.windows, spec.causal) == ((None,) * 5, (False,) * 5)
    assert spec.rope == {"rope_theta": 1e6, "rope_scaling": None}
    assert (spec.head, spec.prefix_len, spec.shift_label) == ("none", 0, False)
    assert spec.vocab_size == spec.draft_vocab_size == 151936
    assert (spec.num_slots(), spec.num_slots(8)) == (15, 7)


def test_block_size_inside_dflash_config_and_sliding_layers() -> None:
    spec = spec_of(V1_NEWER)
    assert (spec.block_size, spec.mask_token_id) == (16, 248070)
    assert spec.windows == (2048,) * 4 + (None,)
    assert spec.rope == {"rope_theta": 1e7, "rope_scaling": None}


def test_sliding_layers_look_backwards_unless_the_file_says_otherwise() -> None:
    assert spec_of(V1_NEWER).causal == (True,) * 4 + (False,)
    assert spec_of(V1_NEWER, is_causal=False).causal == (False,) * 5
    assert spec_of(V1_NEWER, is_causal=True).causal == (True,) * 5
    assert spec_of(V1_OLD, dflash_query_causal=True).causal == (True,) * 5
    assert spec_of(inner(V1_OLD, causal=True)).causal == (True,) * 5


def test_windows_follow_the_draft_layers_in_order() -> None:
    kinds = ["full_attention", "sliding_attention", "full_attention", "sliding_attention"]
    spec = spec_of(V1_NEWER, layer_types=[*kinds, "full_attention"])
    assert spec.windows == (None, 2048, None, 2048, None)
    # Types copied from a deeper target: the draft layers are the first ones.
    spec = spec_of(V1_NEWER, layer_types=[*kinds, "full_attention", *["sliding_attention"] * 9])
    assert spec.windows == (None, 2048, None, 2048, None)


def test_what_is_done_to_logits_and_embeddings() -> None:
    plain = spec_of(V1_OLD)
    assert (plain.softcap, plain.output_multiplier, plain.embedding_scale) == (None, 1.0, None)
    spec = spec_of(inner(V1_OLD, final_logit_softcapping=30.0, output_multiplier=0.5))
    assert (spec.softcap, spec.output_multiplier) == (30.0, 0.5)
    assert spec_of(inner(V1_OLD, input_embedding_scale=8.0)).embedding_scale == 8.0
    assert spec_of(inner(V1_OLD, final_logit_softcapping=0)).softcap is None


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


class TestDSpark:
    def test_deepspec(self) -> None:
        spec = spec_of(DSPARK)
        assert (spec.head, spec.head_variant, spec.head_dim_embed) == ("dspark", "vanilla", 256)
        assert (spec.confidence, spec.confidence_reads_token) == (True, True)
        assert (spec.block_size, spec.num_slots(), spec.prefix_len) == (7, 7, 0)
        assert spec.target_layer_ids == (1, 9, 17, 25, 33)

    def test_specforge(self) -> None:
        spec = spec_of(DSPARK_SPECFORGE)
        assert (spec.head, spec.head_variant, spec.head_dim_embed) == ("dspark", "rnn", 256)
        assert (spec.num_slots(), spec.mask_token_id) == (7, 151669)

    def test_specforge_does_not_read_shift_label_here(self) -> None:
        assert spec_of(inner(DSPARK_SPECFORGE, shift_label=False)).shift_label

    def test_a_block_whose_anchor_does_not_predict(self) -> None:
        assert spec_of(DSPARK, sample_from_anchor=False).num_slots() == 6

    def test_silence_about_confidence_is_kept(self) -> None:
        spec = spec_of(DSPARK, enable_confidence_head=..., confidence_head_with_markov=...)
        assert (spec.confidence, spec.confidence_reads_token) == (None, None)

    def test_a_markov_head_on_a_dflash_drafter(self) -> None:
        mixture = inner(V1_OLD, markov_rank=256)
        with pytest.raises(CheckpointError, match="whether the block's first row predicts"):
            spec_of(mixture)
        spec = spec_of(mixture, sample_from_anchor=False)
        assert (spec.head, spec.num_slots()) == ("dspark", 15)

    def test_rank_zero_switches_the_head_off(self) -> None:
        spec = spec_of(DSPARK, markov_rank=0)
        assert (spec.head, spec.num_slots()) == ("none", 7)


class TestDFlash2:
    def test_convolutions_and_selector(self) -> None:
        spec = spec_of(DFLASH2)
        assert (spec.conv_taps, spec.conv_group) == (2, 16)
        assert (spec.head, spec.head_dim_embed, spec.head_candidates) == ("selector", 256, 16)
        assert (spec.softcap, spec.output_multiplier) == (20.0, 0.196)
        assert (spec.num_slots(), spec.block_size) == (15, 16)

    def test_its_width_must_divide(self) -> None:
        with pytest.raises(CheckpointError, match="conv_group_size 17 does not divide"):
            spec_of(inner(DFLASH2, conv_group_size=17))


class TestSpeculators:
    def test_dflash(self) -> None:
        spec = spec_of(SPECULATORS_DFLASH)
        assert spec.target_layer_ids == (1, 9, 17, 25, 33), "ids count the embedding as 0"
        assert (spec.hidden_size, spec.num_layers, spec.block_size) == (4096, 5, 8)
        assert (spec.vocab_size, spec.draft_vocab_size) == (151936, 32000)
        assert (spec.head, spec.shift_label, spec.num_slots()) == ("none", False, 7)
        assert spec.rope == {"rope_theta": 1e6, "rope_scaling": None}
        assert spec.num_target_layers is None

    def test_dspark(self) -> None:
        spec = spec_of(SPECULATORS_DSPARK)
        assert (spec.head, spec.head_variant, spec.head_dim_embed) == ("dspark", "gated", 256)
        assert (spec.shift_label, spec.num_slots()) == (True, 8)
        assert spec.windows == (2048,) * 4 + (None,)
        assert spec.causal == (True,) * 4 + (False,)

    def test_dflash2(self) -> None:
        spec = spec_of(SPECULATORS_DFLASH2)
        assert (spec.head, spec.head_candidates, spec.conv_taps) == ("selector", 16, 2)
        assert spec.causal == (False,) * 5

    def test_windows_that_look_both_ways(self) -> None:
        assert not any(spec_of(SPECULATORS_DSPARK, sliding_window_non_causal=True).causal)

    @pytest.mark.parametrize(
        ("config", "proposed", "shift"),
        [
            (SPECULATORS_DSPARK, 8, True),
            (SPECULATORS_DSPARK, 7, False),  # early heads kept the anchor row for the anchor
            (SPECULATORS_DSPARK, None, True),
            (SPECULATORS_DFLASH, 8, True),
            (SPECULATORS_DFLASH, None, False),
        ],
    )
    def test_files_older_than_sample_from_anchor(
        self, config: dict[str, Any], proposed: int | None, shift: bool
    ) -> None:
        methods = [{"proposal_type": "greedy", "speculative_tokens": proposed}]
        nested = config["speculators_config"] | {"proposal_methods": methods if proposed else []}
        spec = spec_of(config, sample_from_anchor=..., speculators_config=nested)
        assert spec.shift_label == shift

    @pytest.mark.parametrize("kind", ["eagle3", "eagle", "mlp", "mtp", "peagle"])
    def test_other_algorithms_are_refused_by_name(self, kind: str) -> None:
        with pytest.raises(CheckpointError, match=rf"speculators format \({kind}\)") as error:
            spec_of(SPECULATORS_DFLASH, speculators_model_type=kind)
        assert "dflash, dflash2, dspark" in str(error.value)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"transformer_layer_config": ...}, "no 'transformer_layer_config'"),
            ({"aux_hidden_state_layer_ids": None}, "no 'aux_hidden_state_layer_ids'"),
            ({"aux_hidden_state_layer_ids": [0, 5]}, "reads the target's embeddings"),
            ({"target_hidden_size": 8192}, "'target_hidden_size' 8192, other than its own 4096"),
            ({"mask_token_id": None}, "no 'mask_token_id'"),
            ({"attention_sink_bias": True}, "'attention_sink_bias'"),
        ],
    )
    def test_what_is_missing_is_named(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(CheckpointError, match=message):
            spec_of(SPECULATORS_DSPARK, **changes)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "ubtree": ({**V1_OLD, "architectures": ["UBTreeDraftModel"]}, "UBTree.*bigram selector"),
    "muse-glimmer": (
        {**V1_OLD, "architectures": ["MuseGlimmerAssistantForCausalLM"]},
        "muse_glimmer.*other names",
    ),
    "muse-glimmer-by-type": (
        {**V1_OLD, "architectures": [], "model_type": "muse_glimmer_assistant"},
        "muse_glimmer.*other names",
    ),
    "dspark-gemma": (
        {**DSPARK, "architectures": ["Gemma4DSparkModel"], "model_type": "gemma4_text"},
        "Gemma 4 layers: they need shared keys",
    ),
    "dspark-gated-attention": (
        {**DSPARK, "architectures": ["Qwen35DSparkModel"]},
        "gated Qwen3.5 attention",
    ),
    "dspark-offset-norms": ({**DSPARK, "model_type": "qwen3_5"}, "norms stored as offsets"),
    "dspark-gated-queries": ({**DSPARK, "enable_qwen35_gated_q_proj": True}, "gated query"),
    "dspark-sinks": ({**DSPARK, "attention_sink_bias": True}, "attention sink"),
    "dspark-noise-levels": ({**DSPARK, "log_snr_conditioning": True}, "'log_snr_conditioning'"),
    "dspark-interleaved-rotary": ({**DSPARK, "rope_is_neox_style": False}, "interleaved rotary"),
    "dspark-without-rank": (
        {k: v for k, v in DSPARK.items() if k != "markov_rank"},
        "'markov_rank'",
    ),
    "unknown-markov-head": ({**DSPARK, "markov_head_type": "lstm"}, "markov_head_type 'lstm'"),
    "unknown-projector": (inner(V1_OLD, projector_type="mamba"), "'mamba'"),
    "unknown-field": (inner(V1_OLD, residual_gates=True), r"dflash_config\.residual_gates"),
    "eagle": ({**V1_OLD, "architectures": ["LlamaForCausalLMEagle3"]}, "EAGLE drafter"),
    "attention-biases": ({**V1_OLD, "attention_bias": True}, "biases in its attention"),
    "attention-mode": (inner(V1_OLD, attention_mode="mla"), "attention_mode is 'mla'"),
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
    "unknown-rotary": ({**V1_OLD, "rope_scaling": {"type": "mrope"}}, "scaling is 'mrope'"),
    "moving-rotary": (
        {**V1_OLD, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
        "scaling is 'dynamic'",
    ),
    "rotary-without-factor": ({**V1_OLD, "rope_scaling": {"rope_type": "yarn"}}, "for factor"),
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


@pytest.mark.parametrize(
    "fields", [{"loss_decay_gamma": 7.0, "num_anchors": 256}, {"residual_gates": False}]
)
def test_fields_that_change_nothing_are_let_pass(fields: dict[str, Any]) -> None:
    """About training alone, or switched off."""
    assert spec_of(inner(V1_OLD, **fields)) == spec_of(V1_OLD)


def test_a_dflash_drafters_model_type_may_be_its_targets() -> None:
    assert spec_of(V1_OLD, model_type="gemma4_text") == spec_of(V1_OLD)


JUNK = st.sampled_from([None, "", "x", -1, 0, 10**12, 0.5, True, [], [[]], ["x"], {}, {"a": {}}])


@pytest.mark.parametrize("name", PUBLIC)
@settings(max_examples=60)
@given(data=st.data())
def test_junk_is_refused_and_never_a_traceback(name: str, data: st.DataObject) -> None:
    config: Any = json.loads(json.dumps(PUBLIC[name]))
    for _ in range(data.draw(st.integers(1, 3))):
        place = config
        while True:
            key = data.draw(st.sampled_from(sorted(place)))
            if not isinstance(place[key], dict) or not place[key] or data.draw(st.booleans()):
                break
            place = place[key]
        place[key] = copy.deepcopy(data.draw(JUNK))
    with contextlib.suppress(CheckpointError):
        spec = DraftSpec.from_config(config)
        assert spec.num_slots() >= 1
        assert len(spec.windows) == len(spec.causal) == spec.num_layers


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"num_attention_heads": 0}, "makes no sense"),
        ({"num_hidden_layers": 10**12, "layer_types": None}, "num_hidden_layers is 1000000000000"),
        ({"hidden_size": "wide"}, "makes no sense"),
        ({"num_key_value_heads": 5}, "'num_key_value_heads'"),
        ({"block_size": 1}, "'block_size'"),
        ({"vocab_size": -1}, "'vocab_size'"),
    ],
)
def test_values_no_drafter_can_have(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(CheckpointError, match=field):
        spec_of(V1_OLD, **changes)


def test_drafters_may_rotate_as_targets_do() -> None:
    from dartree_core.models.lean import ROPES

    assert set(attention.ROPES) == ROPES


def test_describing_a_drafter_needs_no_torch() -> None:
    code = "import sys; import dartree_core.draft.spec; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"

"""What a drafter checkpoint's `config.json` says, in one shape for every generation of files.

The fields' homes moved over time (top level, `dflash_config`, `rope_parameters`); a
configuration this version cannot honour is refused by name rather than read wrongly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dartree_core.errors import CheckpointError

HeadKind = Literal["none", "domino"]

_DOMINO_NAMES = {"domino", "causal_v5"}
_KNOWN_ELSEWHERE = {
    "DFlash2DraftModel": "a DFlash2 drafter (convolutional mixer and token selector)",
    "UBTreeDraftModel": "a UBTree drafter (unigram proposer with a bigram selector)",
    "MuseGlimmerAssistantForCausalLM": "a muse_glimmer assistant",
    "muse_glimmer_assistant": "a muse_glimmer assistant",
}
"""By architecture or model type."""
_DFLASH2_FIELDS = ("conv_", "selector_", "final_logit_softcapping", "output_multiplier")


@dataclass(frozen=True, slots=True)
class DraftSpec:
    """Shapes and conventions of a drafter.

    Attributes:
        hidden_size, intermediate_size, num_layers, num_heads, num_kv_heads, head_dim, rms_eps:
            Shapes of the backbone.
        rope: `rope_theta`, and `rope_scaling` where the checkpoint has one.
        windows: Per layer the sliding window in positions, or None for full attention.
        max_positions: Longest absolute position the rotary table must cover.
        block_size: Tokens in a block, the root included.
        mask_token_id: Embedded, through the target's table, at every slot after the root.
        target_layer_ids: Decoder layers of the target whose outputs are the context feature;
            id i is the output of layer i (transformers' `hidden_states[i + 1]`).
        num_target_layers: Layers the drafter's target has, or None where unsaid.
        vocab_size: The target's vocabulary as the drafter knows it.
        draft_vocab_size: Rows of the head; equals `vocab_size` without a reduced vocabulary.
        head: Kind of correction head.
        head_dim_embed, head_dim_state: Low-rank width and GRU state of a Domino head.
        prefix_len: First slots that stay uncorrected (`pure_draft_prefix_len`).
        shift_label: True when block row j predicts token j + 1, so that no row is dropped.
    """

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_eps: float
    rope: Mapping[str, Any]
    windows: tuple[int | None, ...]
    max_positions: int
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int | None
    vocab_size: int
    draft_vocab_size: int
    head: HeadKind
    head_dim_embed: int
    head_dim_state: int
    prefix_len: int
    shift_label: bool

    def num_slots(self, block_size: int | None = None) -> int:
        """K, the tokens one block proposes: `block_size`, less the root row when it is dropped."""
        b = block_size or self.block_size
        return b if self.shift_label else b - 1

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> DraftSpec:
        """Read a checkpoint's `config.json`.

        Raises:
            CheckpointError: The configuration is of a kind this version does not load, or lacks
                a field.
        """
        _refuse_foreign(config)
        inner: Mapping[str, Any] = config.get("dflash_config") or {}
        text: Mapping[str, Any] = config.get("text_config") or config

        def field(name: str, default: Any = _MISSING) -> Any:
            for place in (inner, config, text):
                if place.get(name) is not None:
                    return place[name]
            if default is _MISSING:
                raise CheckpointError(
                    f"The drafter's config.json has no {name!r}.",
                    "It is not a DFlash drafter, or the file is incomplete; fetch it again.",
                )
            return default

        head = _head_kind(inner.get("projector_type", config.get("projector_type")))
        num_layers = int(field("num_hidden_layers"))
        hidden = int(field("hidden_size"))
        heads = int(field("num_attention_heads"))
        num_target_layers = field("num_target_layers", None)
        vocab = int(field("vocab_size"))
        emb_dim = int(field("emb_dim", 0)) if head == "domino" else 0
        layer_ids = field("target_layer_ids", None)
        if layer_ids is None:
            layer_ids = default_layer_ids(num_layers, num_target_layers)
        if not layer_ids:
            raise CheckpointError(
                "The drafter's config.json has an empty list of target_layer_ids.",
                "Add the ids of the target layers it was trained on.",
            )
        spec = cls(
            hidden_size=hidden,
            intermediate_size=int(field("intermediate_size")),
            num_layers=num_layers,
            num_heads=heads,
            num_kv_heads=int(field("num_key_value_heads", heads)),
            head_dim=int(field("head_dim", hidden // heads)),
            rms_eps=float(field("rms_norm_eps", 1e-6)),
            rope=_rope(text),
            windows=_windows(text, num_layers),
            max_positions=int(field("max_position_embeddings", 32768)),
            block_size=int(field("block_size")),
            mask_token_id=int(field("mask_token_id")),
            target_layer_ids=tuple(int(i) for i in layer_ids),
            num_target_layers=None if num_target_layers is None else int(num_target_layers),
            vocab_size=vocab,
            draft_vocab_size=int(field("draft_vocab_size", vocab)),
            head=head,
            head_dim_embed=emb_dim,
            head_dim_state=int(field("gru_hidden_dim", emb_dim)) if head == "domino" else 0,
            prefix_len=int(field("pure_draft_prefix_len", 0)) if head == "domino" else 0,
            shift_label=bool(field("shift_label", False)),
        )
        if head == "domino" and emb_dim == 0:
            raise CheckpointError(
                "The drafter's config.json names a Domino head but no 'emb_dim'.",
                "The file is incomplete; fetch it again.",
            )
        return spec


_MISSING = object()


def default_layer_ids(num_layers: int, num_target_layers: int | None) -> list[int]:
    """The published default: the middle layer for one draft layer, else spread over 1..N-3.

    Raises:
        CheckpointError: The number of target layers is unknown.
    """
    if num_target_layers is None:
        raise CheckpointError(
            "The drafter's config.json has neither 'target_layer_ids' nor 'num_target_layers'.",
            "Add the ids of the target layers it was trained on.",
        )
    n = int(num_target_layers)
    if num_layers == 1:
        return [n // 2]
    first, last = 1, n - 3
    return [round(first + i * (last - first) / (num_layers - 1)) for i in range(num_layers)]


def _refuse_foreign(config: Mapping[str, Any]) -> None:
    if "speculators_model_type" in config:
        raise CheckpointError(
            f"This drafter is in the speculators format ({config['speculators_model_type']}), "
            "which this version does not load.",
            "Use the original DFlash or Domino checkpoint it was converted from.",
        )
    for name in (*(config.get("architectures") or ()), config.get("model_type")):
        if name in _KNOWN_ELSEWHERE:
            raise CheckpointError(
                f"This drafter is {_KNOWN_ELSEWHERE[name]}, which this version does not load.",
                "Use a DFlash v1 or Domino drafter.",
            )
    for name, value in (config.get("dflash_config") or {}).items():
        if name.startswith(_DFLASH2_FIELDS) and value and value != 1.0:
            raise CheckpointError(
                f"The drafter's config.json sets {name!r}, which this version cannot honour.",
                "Use a DFlash v1 or Domino drafter.",
            )
    if config.get("attention_bias"):
        raise CheckpointError(
            "The drafter uses attention biases, which this version does not load.",
            "Use a DFlash v1 or Domino drafter without biases.",
        )
    if config.get("hidden_act", "silu") != "silu":
        raise CheckpointError(
            f"The drafter uses the activation {config['hidden_act']!r}; only 'silu' is supported.",
            "Use a DFlash v1 or Domino drafter.",
        )


def _head_kind(name: str | None) -> HeadKind:
    if name is None or name in ("none", "dflash"):
        return "none"
    if name in _DOMINO_NAMES:
        return "domino"
    raise CheckpointError(
        f"The drafter's correction head is {name!r}, which this version does not load.",
        "Supported heads: domino (also under its older name causal_v5), or none.",
    )


def _rope(text: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = text.get("rope_parameters") or {}
    if any(isinstance(value, Mapping) for value in parameters.values()):
        raise CheckpointError(
            "The drafter's rope_parameters differ per kind of attention.",
            "Use a drafter whose layers share one rotary base.",
        )
    part = parameters.get("partial_rotary_factor", text.get("partial_rotary_factor"))
    if part not in (None, 1.0):
        raise CheckpointError(
            f"The drafter rotates only a part of each head (partial_rotary_factor={part}).",
            "Use a DFlash v1 or Domino drafter, which rotate all of it.",
        )
    scaling = text.get("rope_scaling")
    if scaling is None and parameters.get("rope_type", "default") != "default":
        scaling = parameters
    return {
        "rope_theta": float(parameters.get("rope_theta", text.get("rope_theta", 10000.0))),
        "rope_scaling": dict(scaling) if scaling else None,
    }


def _windows(text: Mapping[str, Any], num_layers: int) -> tuple[int | None, ...]:
    window = text.get("sliding_window")
    types = text.get("layer_types")
    if not types:  # as transformers' Qwen3 fills them in
        first = text.get("max_window_layers", 28) if text.get("use_sliding_window") else num_layers
        kinds = ("full_attention", "sliding_attention")
        types = [kinds[i >= first and bool(window)] for i in range(num_layers)]
    if len(types) < num_layers:
        raise CheckpointError(
            f"The drafter's config.json has {len(types)} layer_types for {num_layers} layers.",
            "The file is damaged; fetch it again.",
        )
    out: list[int | None] = []
    for kind in types[:num_layers]:
        if kind == "full_attention":
            out.append(None)
        elif kind == "sliding_attention" and window:
            out.append(int(window))
        else:
            raise CheckpointError(
                f"The drafter has a layer of type {kind!r} (sliding_window={window}).",
                "Only full_attention and sliding_attention with a window are supported.",
            )
    return tuple(out)

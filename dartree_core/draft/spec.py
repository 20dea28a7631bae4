"""What a drafter checkpoint's `config.json` says, in one shape for every generation of files.

The fields' homes moved over time (top level, `dflash_config`, `rope_parameters`), and the
speculators format spells them differently; a configuration this version cannot honour is refused
by name rather than read wrongly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dartree_core.draft import speculators
from dartree_core.draft.attention import causal_layers, rope_parameters, windows
from dartree_core.draft.fields import Fields
from dartree_core.draft.foreign import refuse_foreign
from dartree_core.draft.head_fields import READERS, HeadKind, head_kind, predicts_from_anchor
from dartree_core.errors import CheckpointError

__all__ = ["DraftSpec", "HeadKind", "default_layer_ids"]


_SENSELESS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What reading a field of the wrong type or size raises."""
_MOST_LAYERS = 1000


@dataclass(frozen=True, slots=True)
class DraftSpec:
    """Shapes and conventions of a drafter.

    Attributes:
        hidden_size, intermediate_size, num_layers, num_heads, num_kv_heads, head_dim, rms_eps:
            Shapes of the backbone.
        rope: `rope_theta`, and `rope_scaling` where the checkpoint has one.
        windows: Per draft layer the sliding window in positions, or None for full attention.
        causal: Per draft layer whether a block row sees only itself and what precedes it.
        max_positions: Longest absolute position the rotary table must cover.
        block_size: Tokens in a block, the root included.
        mask_token_id: Embedded at every slot after the root.
        target_layer_ids: Decoder layers of the target whose outputs are the context feature;
            id i is the output of layer i (transformers' `hidden_states[i + 1]`).
        num_target_layers: Layers the drafter's target has, or None where unsaid.
        vocab_size: The target's vocabulary as the drafter knows it.
        draft_vocab_size: Rows of the head; equals `vocab_size` without a reduced vocabulary.
        head: Kind of correction head.
        head_dim_embed: Low-rank width of the head (`emb_dim`, `markov_rank`, `selector_rank`).
        head_dim_state: GRU state of a Domino head.
        prefix_len: First slots that stay uncorrected (`pure_draft_prefix_len`).
        shift_label: True when block row j predicts token j + 1, so that no row is dropped.
        head_variant: Which Markov head (`vanilla`, `gated`, `rnn`), or "".
        confidence, confidence_reads_token: Whether a DSpark head predicts acceptance, and
            whether from the previous token too; None where only the tensors can tell.
        head_candidates: Most likely tokens a slot the head was trained to choose from; None for
            no limit.
        conv_taps, conv_group: Taps of the convolutions around every sublayer and channels that
            share a coefficient (DFlash2); 0 for none.
        embedding_scale: Factor on the target's raw embedding rows; None to embed as the target
            does.
        output_multiplier, softcap: Logits are multiplied, then bounded by `softcap * tanh`.
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
    causal: tuple[bool, ...]
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
    head_variant: str = ""
    confidence: bool | None = False
    confidence_reads_token: bool | None = False
    head_candidates: int | None = None
    conv_taps: int = 0
    conv_group: int = 0
    embedding_scale: float | None = None
    output_multiplier: float = 1.0
    softcap: float | None = None

    def num_slots(self, block_size: int | None = None) -> int:
        """K, the tokens one block proposes: `block_size`, less the root row when it is dropped."""
        b = block_size or self.block_size
        return b if self.shift_label else b - 1

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> DraftSpec:
        """Read a checkpoint's `config.json`.

        Raises:
            CheckpointError: The configuration is of a kind this version does not load, lacks a
                field, or holds a value that makes no sense there.
        """
        try:
            spec = cls._read(config)
        except _SENSELESS as error:
            raise CheckpointError(
                f"The drafter's config.json holds a value that makes no sense ({error}).",
                "The file is damaged; fetch it again.",
            ) from error
        spec._check()
        return spec

    @classmethod
    def _read(cls, config: Mapping[str, Any]) -> DraftSpec:
        if speculators.is_speculators(config):
            config = speculators.translated(config)
        field = Fields(config)
        refuse_foreign(field)
        num_layers = int(field("num_hidden_layers"))
        if not 1 <= num_layers <= _MOST_LAYERS:
            raise ValueError(f"num_hidden_layers is {num_layers}")
        hidden = int(field("hidden_size"))
        heads = int(field("num_attention_heads"))
        num_target_layers = field("num_target_layers", None)
        vocab = int(field("vocab_size"))
        layer_ids = field("target_layer_ids", None)
        if layer_ids is None:
            layer_ids = default_layer_ids(num_layers, num_target_layers)
        if not layer_ids:
            raise CheckpointError(
                "The drafter's config.json has an empty list of target_layer_ids.",
                "Add the ids of the target layers it was trained on.",
            )
        spans = windows(field.text, num_layers)
        scale, softcap = field("input_embedding_scale", None), field("final_logit_softcapping", 0)
        head = head_kind(field)
        return cls(
            hidden_size=hidden,
            intermediate_size=int(field("intermediate_size")),
            num_layers=num_layers,
            num_heads=heads,
            num_kv_heads=int(field("num_key_value_heads", heads)),
            head_dim=int(field("head_dim", hidden // heads)),
            rms_eps=float(field("rms_norm_eps", 1e-6)),
            rope=rope_parameters(field.text),
            windows=spans,
            causal=causal_layers(field, spans),
            max_positions=int(field("max_position_embeddings", 32768)),
            block_size=int(field("block_size")),
            mask_token_id=int(field("mask_token_id")),
            target_layer_ids=tuple(int(i) for i in layer_ids),
            num_target_layers=None if num_target_layers is None else int(num_target_layers),
            vocab_size=vocab,
            draft_vocab_size=int(field("draft_vocab_size", vocab)),
            head=head,
            shift_label=predicts_from_anchor(field),
            embedding_scale=None if scale is None else float(scale),
            output_multiplier=float(field("output_multiplier", 1.0)),
            softcap=float(softcap) or None,
            **_convolutions(field, hidden),
            **READERS[head](field),
        )

    def _check(self) -> None:
        counts = {
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab_size,
            "draft_vocab_size": self.draft_vocab_size,
            "mask_token_id": self.mask_token_id + 1,
            "block_size": self.num_slots(),
            "pure_draft_prefix_len": self.prefix_len + 1,
        }
        bad = next((name for name, count in counts.items() if count < 1), None)
        if bad is None and self.num_heads % self.num_kv_heads:
            bad = "num_key_value_heads"
        if bad is not None:
            raise CheckpointError(
                f"The drafter's config.json has a {bad!r} that no drafter can have.",
                "The file is damaged; fetch it again.",
            )


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


def _convolutions(field: Fields, hidden: int) -> dict[str, Any]:
    taps = int(field("conv_kernel_size", 0))
    if not taps:
        return {}
    group = int(field("conv_group_size"))
    if group < 1 or hidden % group:
        raise CheckpointError(
            f"The drafter's conv_group_size {group} does not divide its hidden size {hidden}.",
            "The file is damaged; fetch it again.",
        )
    return {"conv_taps": taps, "conv_group": group}

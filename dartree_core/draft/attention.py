"""A drafter's attention, as its configuration states it: rotary bases, windows and direction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dartree_core.draft.fields import Fields
from dartree_core.errors import CheckpointError

ROPES = ("default", "linear", "llama3", "yarn")
"""Rotary types that drafters may have: `models.rope.Rope` turns a key once, for all lengths."""
_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def rope_parameters(text: Mapping[str, Any]) -> Mapping[str, Any]:
    """`rope_theta` and `rope_scaling` (or None), wherever the file keeps them.

    Raises:
        CheckpointError: Layers differ in them, only part of a head is rotated, or the scaling is
            unknown or incomplete.
    """
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
            "Use a drafter that rotates all of it.",
        )
    scaling = text.get("rope_scaling")
    if scaling is None and parameters.get("rope_type", "default") != "default":
        scaling = parameters
    _require_known(scaling or {})
    return {
        "rope_theta": float(parameters.get("rope_theta", text.get("rope_theta", 10000.0))),
        "rope_scaling": dict(scaling) if scaling else None,
    }


def _require_known(scaling: Mapping[str, Any]) -> None:
    """Refuse rotary scalings that are unknown, or whose angles depend on the length so far."""
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in ROPES:
        raise CheckpointError(
            f"The drafter's rotary scaling is {kind!r}.",
            f"Use a drafter with one of these: {', '.join(ROPES)}.",
        )
    lacking = {"linear": ("factor",), "yarn": ("factor",), "llama3": _LLAMA3}.get(kind, ())
    missing = [name for name in lacking if not isinstance(scaling.get(name), (int, float))]
    if missing:
        raise CheckpointError(
            f"The drafter's {kind} rotary scaling has no number for {', '.join(missing)}.",
            "The file is damaged; fetch it again.",
        )


def windows(text: Mapping[str, Any], num_layers: int) -> tuple[int | None, ...]:
    """Per draft layer its sliding window, or None for full attention.

    Raises:
        CheckpointError: A layer is of another kind, or slides without a window.
    """
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


def causal_layers(field: Fields, spans: Sequence[int | None]) -> tuple[bool, ...]:
    """Per draft layer whether block rows look only backwards.

    Published drafters are trained with sliding layers causal inside the block and full ones
    not, unless the configuration says otherwise for all layers.
    """
    stated = field.first("is_causal", "dflash_query_causal", "causal")
    return tuple(span is not None if stated is None else bool(stated) for span in spans)

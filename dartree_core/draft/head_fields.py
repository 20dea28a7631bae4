"""What a configuration says about the correction head.

Without torch, so that describing a drafter stays quick; the heads themselves are in `heads/`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from dartree_core.draft.fields import Fields
from dartree_core.errors import CheckpointError

HeadKind = Literal["none", "domino", "dspark", "selector"]

_PROJECTORS: Mapping[str, HeadKind] = {
    "none": "none",
    "dflash": "none",
    "domino": "domino",
    "causal_v5": "domino",
    "dspark": "dspark",
}
_MARKOV_TYPES = ("vanilla", "gated", "rnn")


def head_kind(field: Fields) -> HeadKind:
    """Which head a configuration describes.

    Raises:
        CheckpointError: One that this version does not know.
    """
    name = field("projector_type", None)
    if name is not None and name not in _PROJECTORS:
        raise CheckpointError(
            f"The drafter's correction head is {name!r}, which this version does not load.",
            "Supported heads: domino (also under its older name causal_v5), dspark, or none.",
        )
    if _is_dspark(field) or (name is None and field("markov_rank", 0)):
        # Rank 0 switches DSpark's head off and leaves a drafter without one.
        return "dspark" if int(field("markov_rank")) else "none"
    if name is not None:
        return _PROJECTORS[name]
    return "selector" if field("selector_rank", 0) else "none"


def predicts_from_anchor(field: Fields) -> bool:
    """Whether the block's first row, the root's, predicts too (`shift_label`).

    DSpark's does unless `sample_from_anchor` says no; its trainers do not read `shift_label`.

    Raises:
        CheckpointError: A mixture of both kinds does not say.
    """
    if _is_dspark(field):
        return bool(field("sample_from_anchor", True))
    stated = field.first("shift_label", "sample_from_anchor")
    if stated is None and field("markov_rank", 0):
        raise CheckpointError(
            "The drafter's config.json has a Markov head on a DFlash drafter, but does not say "
            "whether the block's first row predicts.",
            "Add 'sample_from_anchor', true or false, as it was trained.",
        )
    return bool(stated)


def _is_dspark(field: Fields) -> bool:
    named = any("dspark" in kind.lower() for kind in field.kinds)
    return named or field("projector_type", None) == "dspark"


def _no_head(field: Fields) -> dict[str, Any]:
    return {"head_dim_embed": 0, "head_dim_state": 0, "prefix_len": 0}


def _domino(field: Fields) -> dict[str, Any]:
    width = int(field("emb_dim", 0))
    if not width:
        raise CheckpointError(
            "The drafter's config.json names a Domino head but no 'emb_dim'.",
            "The file is incomplete; fetch it again.",
        )
    return _no_head(field) | {
        "head_dim_embed": width,
        "head_dim_state": int(field("gru_hidden_dim", width)),
        "prefix_len": int(field("pure_draft_prefix_len", 0)),
    }


def _dspark(field: Fields) -> dict[str, Any]:
    variant = str(field("markov_head_type", "vanilla")).lower()
    if variant not in _MARKOV_TYPES:
        raise CheckpointError(
            f"The drafter's config.json says markov_head_type {variant!r}; this version knows "
            f"{', '.join(_MARKOV_TYPES)}.",
            "Use a drafter with one of these heads.",
        )
    return _no_head(field) | {
        "head_dim_embed": int(field("markov_rank")),
        "head_variant": variant,
        "confidence": field("enable_confidence_head", None),
        "confidence_reads_token": field("confidence_head_with_markov", None),
    }


def _selector(field: Fields) -> dict[str, Any]:
    return _no_head(field) | {
        "head_dim_embed": int(field("selector_rank")),
        "head_candidates": int(field("selector_top_k")),
    }


READERS: Mapping[HeadKind, Callable[[Fields], dict[str, Any]]] = {
    "none": _no_head,
    "domino": _domino,
    "dspark": _dspark,
    "selector": _selector,
}
"""From a configuration to the head's part of a `DraftSpec`, by kind."""

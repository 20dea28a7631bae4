"""The speculators format (vllm-project/speculators): the same drafters, spelt differently.

The backbone's shapes are nested in `transformer_layer_config`; layer ids count the embedding as
0, so id i + 1 is the output of decoder layer i; a reduced vocabulary comes as `d2t`, which holds
target id minus row, and `t2d`, a mask over the target's ids. Translated once, in configuration
and tensors, and read like any other drafter from there on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dartree_core.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

_LOADED = ("dflash", "dflash2", "dspark")
_PROJECTORS = {"dspark": "dspark"}
_HEAD_FIELDS = (
    "markov_rank",
    "markov_head_type",
    "enable_confidence_head",
    "confidence_head_with_markov",
    "conv_kernel_size",
    "conv_group_size",
    "selector_rank",
    "selector_top_k",
    "final_logit_softcapping",
    "output_multiplier",
    "attention_sink_bias",
)
_TRAINER_ONLY = ("verifier_lm_head.weight", "verifier_norm.weight")
"""The target's own weights, which some versions save beside the drafter's."""


def is_speculators(config: Mapping[str, Any]) -> bool:
    """True for a `config.json` of this format."""
    return "speculators_model_type" in config or "speculators_config" in config


def translated(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration as an original DFlash or DSpark checkpoint would state it.

    Raises:
        CheckpointError: It is of an algorithm this version does not load, or lacks a field.
    """
    algorithm = _algorithm(config)
    layer = config.get("transformer_layer_config")
    if not isinstance(layer, Mapping) or not layer:
        raise _incomplete("transformer_layer_config")
    wider = config.get("target_hidden_size")
    if wider not in (None, layer.get("hidden_size")):
        raise CheckpointError(
            f"The drafter's config.json says 'target_hidden_size' {wider}, other than its own "
            f"{layer.get('hidden_size')}: it needs a projection between the two, which this "
            "version lacks.",
            "Use a drafter as wide as its target.",
        )
    heads = {name: config[name] for name in _HEAD_FIELDS if name in config}
    out: dict[str, Any] = {
        **{k: v for k, v in layer.items() if k != "model_type"},
        **heads,
        "architectures": ["DFlashDraftModel"],
        "target_layer_ids": _layer_ids(config),
        "block_size": config.get("block_size"),
        "mask_token_id": config.get("mask_token_id"),
        "draft_vocab_size": config.get("draft_vocab_size"),
        "sample_from_anchor": _samples_anchor(config, algorithm),
    }
    if config.get("sliding_window_non_causal", algorithm == "dflash2"):
        out["is_causal"] = False
    if algorithm in _PROJECTORS:
        out["projector_type"] = _PROJECTORS[algorithm]
    return out


def _algorithm(config: Mapping[str, Any]) -> str:
    nested = config.get("speculators_config") or {}
    name = config.get("speculators_model_type") or nested.get("algorithm")
    if name not in _LOADED:
        raise CheckpointError(
            f"This drafter is in the speculators format ({name}); of that format this version "
            f"loads {', '.join(_LOADED)}.",
            "Use a block drafter: DFlash, DFlash2, Domino or DSpark.",
        )
    return str(name)


def _layer_ids(config: Mapping[str, Any]) -> list[int]:
    ids = config.get("aux_hidden_state_layer_ids")
    if not ids:
        raise _incomplete("aux_hidden_state_layer_ids")
    if min(ids) < 1:
        raise CheckpointError(
            "The drafter reads the target's embeddings (aux_hidden_state_layer_ids holds 0).",
            "Only outputs of decoder layers, ids from 1 on in this format, are supported.",
        )
    return [int(i) - 1 for i in ids]


def _samples_anchor(config: Mapping[str, Any], algorithm: str) -> bool:
    """Whether the block's first row predicts too.

    Files written before `sample_from_anchor` existed tell it by the number of tokens they
    propose; DSpark's default is yes, DFlash's no.
    """
    stated = config.get("sample_from_anchor")
    if stated is not None:
        return bool(stated)
    methods = (config.get("speculators_config") or {}).get("proposal_methods") or [{}]
    proposed, block = methods[0].get("speculative_tokens"), config.get("block_size")
    if proposed and block and proposed in (block, block - 1):
        return bool(proposed == block)
    return algorithm == "dspark"


def take_vocabulary(tensors: dict[str, Tensor], reduced: bool) -> Tensor | None:
    """Remove what only this format stores; the target ids of the drafter's rows, or None.

    Args:
        tensors: All tensors of the checkpoint; `d2t`, `t2d` and the trainer's own are taken out.
        reduced: Whether the drafter has a vocabulary of its own; the maps of others are void.

    Raises:
        CheckpointError: `d2t` and `t2d` contradict each other.
    """
    import torch

    for name in _TRAINER_ONLY:
        tensors.pop(name, None)
    offsets, mask = tensors.pop("d2t", None), tensors.pop("t2d", None)
    if offsets is None or not reduced:
        return None
    ids = torch.arange(len(offsets)) + offsets.long()
    if mask is not None and not torch.equal(ids.sort().values, mask.nonzero().flatten()):
        raise CheckpointError(
            "The drafter's 'd2t' and 't2d' tensors name different target tokens.",
            "The checkpoint is damaged; fetch it again.",
        )
    return ids


def _incomplete(name: str) -> CheckpointError:
    return CheckpointError(
        f"The drafter's config.json is in the speculators format but has no {name!r}.",
        "The file is incomplete; fetch it again.",
    )

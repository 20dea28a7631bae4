"""From a recipe and a target to the drafter's `config.json`, the one place for its shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dartree_core.draft.spec import default_layer_ids
from dartree_core.errors import ConfigError
from dartree_core.models.target import Target
from dartree_core.train.corpus import Corpus
from dartree_core.train.recipe import ShapeRecipe

ARCHITECTURE = "DFlashDraftModel"


def drafter_config(shape: ShapeRecipe, target: Target, mask_token_id: int) -> dict[str, Any]:
    """`config.json` of a drafter for `target`, in the public DFlash/Domino layout.

    Raises:
        ConfigError: The recipe asks for target layers or a vocabulary that are not there.
    """
    text = target.config
    layers = _target_layers(shape, target.num_layers)
    if shape.draft_vocab > target.vocab_size:
        raise ConfigError(
            f"drafter.draft_vocab is {shape.draft_vocab}, but the target has "
            f"{target.vocab_size} tokens.",
            "Use a smaller number, or 0 for the whole vocabulary.",
        )
    heads = text.num_attention_heads
    inner: dict[str, Any] = {"target_layer_ids": list(layers), "mask_token_id": mask_token_id}
    if shape.head == "domino":
        inner |= {
            "projector_type": "domino",
            "emb_dim": shape.head_embed,
            "gru_hidden_dim": shape.head_state,
            "pure_draft_prefix_len": shape.prefix_len,
        }
    inner["shift_label"] = shape.shift_label
    config = {
        "architectures": [ARCHITECTURE],
        "model_type": "qwen3",
        "hidden_size": target.hidden_size,
        "intermediate_size": _mlp_width(text),
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": heads,
        "num_key_value_heads": getattr(text, "num_key_value_heads", None) or heads,
        "head_dim": getattr(text, "head_dim", None) or target.hidden_size // heads,
        "hidden_act": "silu",
        "rms_norm_eps": getattr(text, "rms_norm_eps", 1e-6),
        **_rope(text),
        "max_position_embeddings": min(target.max_positions, 2**20),
        "attention_bias": False,
        "attention_dropout": 0.0,
        "vocab_size": target.vocab_size,
        "tie_word_embeddings": False,
        "layer_types": ["full_attention"] * shape.num_layers,
        "sliding_window": None,
        "num_target_layers": target.num_layers,
        "block_size": shape.block_size,
        "torch_dtype": "bfloat16",
        "dflash_config": inner,
    }
    if shape.draft_vocab:
        config["draft_vocab_size"] = shape.draft_vocab
    return config


def draft_vocabulary(
    corpus: Corpus, size: int, target: Target, known: torch.Tensor | None = None
) -> torch.Tensor | None:
    """Sorted ids of the `size` most frequent answer tokens, int64; None for all tokens.

    Special tokens that end an answer always belong, and so do those that are `known` to a
    drafter trained before; ties go to the smaller id.
    """
    if size == 0:
        return None
    counts = corpus.token_counts(target.vocab_size)
    always = list(end_tokens(target)) + ([] if known is None else known.tolist())
    counts[always] = counts.max(initial=0) + 1
    order = np.argsort(-counts, kind="stable")[:size]
    return torch.from_numpy(np.sort(order).astype(np.int64))


def end_tokens(target: Target) -> set[int]:
    """Token ids that end an answer, from the target's generation settings."""
    found: set[int] = set()
    for holder in (getattr(target.model, "generation_config", None), target.config):
        ids = getattr(holder, "eos_token_id", None)
        if ids is not None:
            found |= set(ids) if isinstance(ids, list | tuple) else {int(ids)}
    return found


def pick_mask_token(corpus: Corpus, target: Target, special: list[int]) -> int:
    """A token whose embedding can stand for "unknown" because the corpus never uses it.

    Special tokens are tried first, in order of id, then rows from the end of the table.

    Raises:
        ConfigError: Every token occurs in the corpus, or has an embedding of zeros.
    """
    table = target.embedding.weight
    used: npt.NDArray[np.bool_] = np.zeros(table.shape[0], dtype=bool)
    for sample in corpus.samples:
        used[sample.tokens] = True
    used[list(end_tokens(target))] = True
    for token in (*sorted(special), *range(len(used) - 1, -1, -1)):
        # Rows that only pad the table may be zeros, which say nothing to any layer.
        if token < len(used) and not used[token] and bool(table[token].any()):
            return int(token)
    raise ConfigError(
        "The corpus uses every token that has an embedding, so none can stand for a mask.",
        "Set drafter.mask_token_id to a token that chats never hold.",
    )


def _target_layers(shape: ShapeRecipe, count: int) -> tuple[int, ...]:
    if not shape.target_layers:
        spread = default_layer_ids(max(2, shape.num_features), max(count, 4))
        return tuple(sorted({min(i, count - 1) for i in spread}))
    wrong = [i for i in shape.target_layers if not 0 <= i < count]
    if wrong:
        raise ConfigError(
            f"drafter.target_layers names {wrong}, but the target has layers 0 to {count - 1}.",
            "Name existing layers, or leave it empty for spread ones.",
        )
    return shape.target_layers


def _mlp_width(text: Any) -> int:
    """GPT-2 and its like have another name for it, and a default."""
    named: int | None = getattr(text, "intermediate_size", None) or getattr(text, "n_inner", None)
    return named or 4 * int(text.hidden_size)


def _rope(text: Any) -> dict[str, Any]:
    parameters = getattr(text, "rope_parameters", None) or {}
    # Models with a rotary base per attention kind nest the parameters once more.
    if parameters and all(isinstance(v, dict) for v in parameters.values()):
        parameters = parameters.get("full_attention") or next(iter(parameters.values()))
    theta: float = parameters.get("rope_theta") or getattr(text, "rope_theta", None) or 10000.0
    out: dict[str, Any] = {"rope_theta": float(theta)}
    if parameters.get("rope_type", "default") != "default":
        out["rope_scaling"] = dict(parameters)
    return out

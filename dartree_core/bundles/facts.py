"""What a model folder holds, read from `config.json` and safetensors headers alone.

No tensor is read and torch is not needed, so commands that only describe stay quick. Damaged
and pickled weights are refused here, before anything heavy starts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dartree_core.weights import read_header, read_json, weight_files


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Shapes and sizes of a model on disk.

    Attributes:
        path: Its folder.
        architecture: Class name as its configuration states it, or its model type.
        layers, hidden, heads, kv_heads, head_dim, intermediate, vocab, max_positions: Shapes;
            None where the configuration is silent.
        parameters: Stored weights.
        dtypes: Of the stored weights, safetensors' names, the commonest first.
        bytes: Of all files in the folder.
        config: The whole configuration.
    """

    path: Path
    architecture: str
    layers: int | None
    hidden: int | None
    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    intermediate: int | None
    vocab: int | None
    max_positions: int | None
    parameters: int
    dtypes: tuple[str, ...]
    bytes: int
    config: Mapping[str, Any]


def read_facts(folder: Path) -> ModelFacts:
    """Describe the model in `folder`.

    Raises:
        CheckpointError: There is no configuration, or the weights are missing, damaged or
            pickled.
    """
    config = read_config(folder)
    nested = config.get("text_config") or config.get("transformer_layer_config")
    text: Mapping[str, Any] = nested or config
    per_dtype: dict[str, int] = {}
    for file in weight_files(folder):
        for entry in read_header(file).values():
            count = math.prod(entry["shape"])
            per_dtype[entry["dtype"]] = per_dtype.get(entry["dtype"], 0) + count
    heads, hidden = text.get("num_attention_heads"), text.get("hidden_size")
    return ModelFacts(
        path=folder,
        architecture=(config.get("architectures") or [config.get("model_type", "unknown")])[0],
        layers=text.get("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=text.get("num_key_value_heads", heads),
        head_dim=text.get("head_dim") or (hidden // heads if hidden and heads else None),
        intermediate=text.get("intermediate_size"),
        vocab=text.get("vocab_size"),
        max_positions=text.get("max_position_embeddings"),
        parameters=sum(per_dtype.values()),
        dtypes=tuple(sorted(per_dtype, key=lambda name: -per_dtype[name])),
        bytes=sum(p.stat().st_size for p in folder.iterdir() if p.is_file()),
        config=config,
    )


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json` of a model folder.

    Raises:
        CheckpointError: It is missing or is no JSON object.
    """
    file = folder / "config.json"
    return read_json(file, f"{folder} is no model folder: it has no config.json.")


def require_whole(folder: Path) -> None:
    """Check that the folder is a model whose weights are all there and not cut short.

    Raises:
        CheckpointError: It is not.
    """
    read_config(folder)
    for file in weight_files(folder):
        read_header(file)

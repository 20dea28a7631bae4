"""What a model folder holds, read from `config.json` and safetensors headers alone.

No tensor is read and torch is not needed, so commands that only describe stay quick. Damaged
and pickled weights are refused here, before anything heavy starts.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dartree_core.errors import CheckpointError

_INDEX = "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_NOT_WEIGHTS = ("consolidated", "training_args", "optimizer")
_HEADER_LIMIT = 100_000_000
"""Largest header the safetensors format allows, in bytes."""


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
    return _read_json(file, f"{folder} is no model folder: it has no config.json.")


def _read_json(file: Path, absent: str) -> dict[str, Any]:
    try:
        data = json.loads(file.read_text("utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(
            absent, "Give a folder with config.json and *.safetensors, as transformers saves it."
        ) from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}.", "Fetch it again.") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{file} is not a JSON object.", "Fetch it again.")
    return data


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model folder, all of them there.

    Raises:
        CheckpointError: Shards are missing, or there are only pickles or no weights at all.
    """
    index = folder / _INDEX
    if index.is_file():
        shards = sorted(set(_read_json(index, "").get("weight_map", {}).values()))
        missing = [name for name in shards if not (folder / name).is_file()]
        if missing:
            raise CheckpointError(
                f"{folder} lacks {len(missing)} of {len(shards)} weight files, among them "
                f"{missing[0]}.",
                "Fetch it again.",
            )
        return [folder / name for name in shards]
    files = sorted(p for p in folder.glob("*.safetensors") if not p.name.startswith(_NOT_WEIGHTS))
    if files:
        return files
    pickles = sorted(
        p.name
        for pattern in _PICKLES
        for p in folder.glob(pattern)
        if not p.name.startswith(_NOT_WEIGHTS)
    )
    if pickles:
        raise refuse_pickles(str(folder), pickles)
    raise CheckpointError(
        f"{folder} holds no weights: there is no .safetensors file.", "Fetch it again."
    )


def refuse_pickles(where: str, names: list[str]) -> CheckpointError:
    """The refusal of a model whose weights are pickles."""
    return CheckpointError(
        f"{where} has its weights only as pickles ({', '.join(names[:3])}), which can run code "
        "when they are opened.",
        "Use a safetensors version of the model, or convert it where you trust the file: "
        "transformers' save_pretrained writes safetensors.",
    )


def read_header(file: Path) -> dict[str, dict[str, Any]]:
    """Tensor name to `{"dtype", "shape", "data_offsets"}` of a safetensors file.

    Raises:
        CheckpointError: The file is cut short or is not safetensors.
    """
    damaged = CheckpointError(
        f"{file} is damaged: it is cut short or is no safetensors file.", "Fetch it again."
    )
    try:
        with file.open("rb") as opened:
            prefix = opened.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else _HEADER_LIMIT
            if length >= _HEADER_LIMIT:
                raise damaged
            header = json.loads(opened.read(length))
        header.pop("__metadata__", None)
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise damaged from error
    if file.stat().st_size != 8 + length + end:
        raise damaged
    entries: dict[str, dict[str, Any]] = header
    return entries


def require_whole(folder: Path) -> None:
    """Check that the folder is a model whose weights are all there and not cut short.

    Raises:
        CheckpointError: It is not.
    """
    read_config(folder)
    for file in weight_files(folder):
        read_header(file)

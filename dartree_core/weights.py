"""Weight files of a model folder: which there are, and what their headers say."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

from dartree_core.errors import CheckpointError

_INDEX = "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_NOT_WEIGHTS = ("consolidated", "training_args", "optimizer")
_SHARD = re.compile(r"-\d+-of-(\d+)\.safetensors$")
_HEADER_LIMIT = 100_000_000
"""Largest header the safetensors format allows, in bytes."""


def read_json(file: Path, absent: str) -> dict[str, Any]:
    """A JSON object; `absent` is said where there is no such file.

    Raises:
        CheckpointError: It is missing, unreadable or no object.
    """
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
        shards = sorted(set(read_json(index, "").get("weight_map", {}).values()))
        missing = [name for name in shards if not (folder / name).is_file()]
        if missing:
            raise CheckpointError(
                f"{folder} lacks {len(missing)} of {len(shards)} weight files, among them "
                f"{missing[0]}.",
                "Fetch it again.",
            )
        return [folder / name for name in shards]
    files = sorted(p for p in folder.glob("*.safetensors") if not p.name.startswith(_NOT_WEIGHTS))
    shards = [found for file in files if (found := _SHARD.search(file.name))]
    if any(int(shard[1]) > len(shards) for shard in shards):
        raise CheckpointError(
            f"{folder} has {len(shards)} of {int(shards[0][1])} weight files, and no {_INDEX}.",
            "Fetch it again.",
        )
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
        CheckpointError: The file cannot be read, is cut short or is not safetensors.
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
    except OSError as error:
        raise CheckpointError(
            f"{file} cannot be read: {error.strerror}.", "Check its permissions and its disk."
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise damaged from error
    if file.stat().st_size != 8 + length + end:
        raise damaged
    entries: dict[str, dict[str, Any]] = header
    return entries

"""Loading a target from a local directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from dartree_core.errors import CheckpointError, ConfigError
from dartree_core.models.device import pick_dtype
from dartree_core.models.lean import LeanTarget, supports
from dartree_core.models.memory import Memory
from dartree_core.models.target import Target


def load_target(
    path: str | Path,
    *,
    device: torch.device,
    dtype: torch.dtype | None,
    lean: bool = False,
    memory: Memory | None = None,
    trust_remote_code: bool = False,
    label: str = "",
    revision: str = "",
) -> Target:
    """Load any transformers causal language model whose weights are safetensors.

    Args:
        path: A directory in transformers' layout.
        device: Where to run.
        dtype: Of the weights; None picks the fastest that computes well on this device.
        lean: Use the lean path where it supports the architecture. It takes the model's weights
            over, so leave it off to work with the transformers model itself.
        memory: Where kernel measurements of the lean path are kept.
        trust_remote_code: Run Python code that the model brings.
        label, revision: For display.

    Raises:
        CheckpointError: The directory is no loadable model, or of an unsupported kind.
        ConfigError: The model brings its own code and `trust_remote_code` is off.
    """
    folder = Path(path)
    _check(folder, trust_remote_code)
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    lean = lean and _can_be_lean(folder, trust_remote_code)
    weights = dtype or pick_dtype("auto", device)
    # A CPU multiplies float16 weights well, but float16 activations badly: only the lean path
    # keeps the two apart.
    mixed = device.type == "cpu" and weights == torch.float16
    if mixed and not lean and dtype is None:
        weights, mixed = torch.float32, False
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32 if mixed and lean else weights,
            attn_implementation="sdpa",
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
        )
    except (OSError, ValueError, KeyError, ImportError, SafetensorError) as error:
        raise CheckpointError(
            f"{folder} could not be loaded as a causal language model ({error}).",
            "Give a directory or hub id of a decoder-only model with safetensors weights.",
        ) from error
    model = model.to(device).eval()
    model.requires_grad_(False)
    named = {"label": label or folder.name, "revision": revision}
    if lean:
        return LeanTarget(model, weights=weights, memory=memory, **named)
    return Target(model, **named)


def _can_be_lean(folder: Path, trust_remote_code: bool) -> bool:
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError):
        return False  # the model's own loading says what is wrong
    return supports(config)


def load_tokenizer(path: str | Path, *, trust_remote_code: bool = False) -> Any | None:
    """The tokenizer beside a model, or None where there is none (bare test models).

    Raises:
        CheckpointError: Tokenizer files are there but cannot be loaded.
    """
    folder = Path(path)
    if not any((folder / f).exists() for f in ("tokenizer.json", "tokenizer_config.json")):
        return None
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise CheckpointError(
            f"The tokenizer in {folder} could not be loaded ({error}).",
            "Fetch the model again.",
        ) from error


def _check(folder: Path, trust_remote_code: bool) -> None:
    file = folder / "config.json"
    if not file.is_file():
        raise CheckpointError(
            f"{folder} has no config.json.", "Give a directory that holds a transformers model."
        )
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(
            f"{file} is not valid JSON ({error}).", "Fetch the model again."
        ) from error
    if config.get("auto_map") and not trust_remote_code:
        raise ConfigError(
            f"The model in {folder} brings its own Python code.",
            "Read that code, then pass --trust-remote-code to run it.",
        )
    if not any(folder.glob("*.safetensors")):
        raise CheckpointError(
            f"{folder} holds no .safetensors weights.",
            "Pickled weights can run code when loaded and are refused; convert them first.",
        )

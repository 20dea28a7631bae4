"""Loading a target from a local directory."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError

from dartree_core.errors import CheckpointError, ConfigError
from dartree_core.models import kernels
from dartree_core.models.device import pick_dtype
from dartree_core.models.kinds import package_for, quantisation, refuse_kind
from dartree_core.models.lean import LeanTarget, supports
from dartree_core.models.memory import Memory
from dartree_core.models.room import require_weights
from dartree_core.models.selfcheck import check_rows
from dartree_core.models.target import Target

_FAULTS = (OSError, ValueError, KeyError, TypeError, AttributeError, StrictDataclassError)
"""What transformers raises at configurations that are not what it expects."""


def load_target(
    path: str | Path,
    *,
    device: torch.device,
    dtype: torch.dtype | None,
    lean: bool = False,
    memory: Memory | None = None,
    graphs: bool | None = None,
    trust_remote_code: bool = False,
    label: str = "",
    revision: str = "",
) -> Target:
    """Load any transformers causal language model whose weights are safetensors.

    A quantised model is loaded as it is: what it says is what speculation reproduces. On the
    general path a few passes check that rows of a tree are independent of each other.

    Args:
        path: A directory in transformers' layout.
        device: Where to run.
        dtype: Of the weights; None picks the fastest that computes well on this device.
        lean: Use the lean path where it supports the architecture. It takes the model's weights
            over, so leave it off to work with the transformers model itself.
        memory: Where kernel measurements of the lean path are kept.
        graphs: CUDA graphs on the lean path; None uses them on CUDA.
        trust_remote_code: Run Python code that the model brings.
        label, revision: For display.

    Raises:
        CheckpointError: The directory is no loadable model, or of an unsupported kind.
        ConfigError: The model brings its own code and `trust_remote_code` is off.
    """
    folder = Path(path)
    named: dict[str, Any] = {"label": label or folder.name, "revision": revision}
    config = _check(folder, trust_remote_code)
    lean = lean and _can_be_lean(folder, config, trust_remote_code)
    if not lean:
        # Quantised weights are laid out for their device as they are read, and cannot be moved.
        placing = {"device_map": {"": device}} if quantisation(config) else {}
        model = load_model(folder, device, dtype, trust_remote_code, **placing)
        target = Target(model if placing else model.to(device), **named)
        target.notes = check_rows(target)
        return target
    weights = dtype or pick_dtype("auto", device)
    # A CPU multiplies 16-bit weights well, but everything else with 16-bit numbers badly: only the
    # lean path keeps the two apart, where there is a kernel for it.
    has = {torch.float16: kernels.has_fbgemm, torch.bfloat16: kernels.has_bfloat16}
    mixed = device.type == "cpu" and weights in has and has[weights]()
    model = load_model(folder, device, torch.float32 if mixed else weights, trust_remote_code)
    return LeanTarget(model.to(device), weights=weights, memory=memory, graphs=graphs, **named)


def load_model(
    path: str | Path,
    device: torch.device,
    dtype: torch.dtype | None,
    trust_remote_code: bool = False,
    **placing: Any,
) -> Any:
    """A transformers model, frozen, in eval mode.

    Args:
        path, trust_remote_code: As in `load_target`.
        device: Where it will run; nothing is moved there.
        dtype: Of the weights; None picks what computes well there.
        placing: How weights are spread, as `from_pretrained` takes it.

    Raises:
        CheckpointError: The directory is no loadable model.
        CapacityError: Its weights do not fit into the device's memory.
        ConfigError: The model brings its own code and `trust_remote_code` is off.
    """
    folder = Path(path)
    config = _check(folder, trust_remote_code)
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    if dtype is None:
        dtype = pick_dtype("auto", device)
        if device.type == "cpu":
            dtype = torch.float32  # 16-bit activations are slow on a CPU
    if not placing:
        require_weights(folder, device, dtype)
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
            **_attention(config),
            **placing,
        )
    except torch.OutOfMemoryError:
        raise
    except (*_FAULTS, ImportError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(
            f"{folder} could not be loaded as a causal language model ({_first_line(error)}).",
            _remedy(quantisation(config)),
        ) from error
    _require_all(folder, model, report["missing_keys"])
    model.requires_grad_(False)
    return model.eval()


def _require_all(folder: Path, model: Any, missing: Iterable[str]) -> None:
    """Refuse a model that transformers has filled up with random weights."""
    lacking = sorted({name for name, _ in model.named_parameters()} & set(missing))
    if lacking:
        more = f" and {len(lacking) - 3} more" if len(lacking) > 3 else ""
        raise CheckpointError(
            f"{folder} lacks weights of {type(model).__name__}: {', '.join(lacking[:3])}{more}.",
            "The files are incomplete, or config.json names another architecture; get them again.",
        )


def _attention(config: dict[str, Any]) -> dict[str, str]:
    """Left to transformers, which takes SDPA where the architecture has it and else computes
    eagerly (soft caps, sinks); but a kernel that its owner ran with may take no masks."""
    stored = config.get("attn_implementation")
    return {} if stored in (None, "sdpa", "eager") else {"attn_implementation": "sdpa"}


def _remedy(method: str) -> str:
    package = package_for(method)
    if method and package:
        return f"Its weights are quantised with {method}: check that {package} is installed here."
    return "Give a directory or hub id of a decoder-only model with safetensors weights."


def _can_be_lean(folder: Path, config: dict[str, Any], trust_remote_code: bool) -> bool:
    from transformers import AutoConfig

    if config.get("auto_map"):
        return False  # what a model's own class computes is not known, whatever its name
    try:
        return supports(AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code))
    except _FAULTS:
        return False  # the model's own loading says what is wrong


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


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
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
        # Prompts that are too long are refused by name; transformers need not foretell errors.
        told = getattr(tokenizer, "deprecation_warnings", {})
        told["sequence-length-is-longer-than-the-specified-maximum"] = True
        return tokenizer
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise CheckpointError(
            f"The tokenizer in {folder} could not be loaded ({error}).",
            "Fetch the model again.",
        ) from error


def _check(folder: Path, trust_remote_code: bool) -> dict[str, Any]:
    """The model's `config.json`, when it may be loaded."""
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
    if not isinstance(config, dict):
        raise CheckpointError(f"{file} is not a JSON object.", "Fetch the model again.")
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
    refuse_kind(config)
    return config

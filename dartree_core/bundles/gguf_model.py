"""A GGUF file becomes a plain transformers folder: safetensors, config, tokenizer.

transformers reads the file; what it gets wrong or refuses is put right here. It will not save a
model loaded from GGUF, so the dequantised weights are stored with a clean configuration. And
its tokenizer for `smollm`-type vocabularies lacks the digit splitter, so that blanks before a
number would be cut otherwise than in training.
"""

from __future__ import annotations

import errno
import io
import json
import logging
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dartree_core.bundles.progress import Progress, silent
from dartree_core.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

FP32_LIMIT = 1_000_000_000
"""Models up to this many weights are stored in float32, the exact value of every quantised
weight (float16 would round 42% of SmolLM2's Q4_1 weights). Larger ones take bfloat16."""

_DIGIT_SPLITTERS = frozenset(
    {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}
)
"""`tokenizer.ggml.pre` values for which llama.cpp splits single digits off before GPT-2's rule."""

WEIGHTS = "model.safetensors"
_STEPS = 4

_CLUTTER = (
    *("quantization_config", "_name_or_path", "_model_name_or_path", "unk_token_id"),
    *("id2label", "label2id", "problem_type", "return_dict", "output_hidden_states"),
    *("output_attentions", "chunk_size_feed_forward", "is_encoder_decoder"),
)
"""Configuration keys that say nothing about the model, or that it came from a GGUF file."""


@dataclass(frozen=True, slots=True)
class Converted:
    """What was stored: number of weights, and their dtype as safetensors readers name it."""

    parameters: int
    dtype: str


def convert(gguf: Path, into: Path, progress: Progress = silent, label: str = "") -> Converted:
    """Write the model and tokenizer of `gguf` into the folder `into`.

    Args:
        gguf: Any GGUF file transformers can read.
        into: An existing folder.
        progress: Hears of the steps.
        label: The model's name, for the listener.

    Raises:
        CheckpointError: The file is damaged, or of an architecture or tokenizer transformers
            does not read.
    """
    what = f"dequantising {label or gguf.name}"
    progress(what, 0, _STEPS, "steps")
    facts = _metadata(gguf)
    with _refusals(gguf), _quiet_transformers():
        _write_tokenizer(gguf, facts, into)
        progress(what, 1, _STEPS, "steps")
        done = _write_model(gguf, facts, into, lambda step: progress(what, step, _STEPS, "steps"))
    progress(what, _STEPS, _STEPS, "steps")
    return done


def stored_bytes(gguf: Path) -> int:
    """About how many bytes `convert` writes for a file; tokenizers are small beside weights.

    Raises:
        CheckpointError: The file is damaged.
    """
    parameters = _metadata(gguf).parameters
    return parameters * (4 if parameters <= FP32_LIMIT else 2) * 11 // 10


@dataclass(frozen=True, slots=True)
class _Facts:
    pre: str
    parameters: int
    context: int | None


def _metadata(gguf: Path) -> _Facts:
    from gguf import GGUFReader

    try:
        reader = GGUFReader(gguf)
    except (ValueError, KeyError, IndexError, struct.error, OverflowError) as error:
        raise CheckpointError(
            f"{gguf} cannot be read as a GGUF file: {error}.",
            "It was cut short or is of an unknown version; fetch or copy it again.",
        ) from error

    def field(key: str) -> Any:
        found = reader.fields.get(key)
        return None if found is None else found.contents()

    return _Facts(
        pre=str(field("tokenizer.ggml.pre") or ""),
        parameters=sum(int(t.n_elements) for t in reader.tensors),
        context=field(f"{field('general.architecture')}.context_length"),
    )


def _write_tokenizer(gguf: Path, facts: _Facts, into: Path) -> None:
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    if facts.pre in _DIGIT_SPLITTERS:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    if facts.context:
        tokenizer.model_max_length = facts.context
    for key in ("name_or_path", "is_local", "local_files_only"):
        tokenizer.init_kwargs.pop(key, None)
    tokenizer.save_pretrained(str(into))


def _write_model(gguf: Path, facts: _Facts, into: Path, step: Any) -> Converted:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    dtype = torch.float32 if facts.parameters <= FP32_LIMIT else torch.bfloat16
    model, report = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent), gguf_file=gguf.name, dtype=dtype, output_loading_info=True
    )
    missing = sorted(report.get("missing_keys") or ())
    if missing:
        raise CheckpointError(
            f"{gguf.name} lacks {len(missing)} tensors of its model, among them {missing[0]}.",
            "The file is incomplete or of a variant transformers does not read; use another.",
        )
    step(2)
    tensors = _without_ties(model.state_dict())
    with _disk_errors(into):
        save_file(tensors, str(into / WEIGHTS), metadata={"format": "pt"})
    (into / WEIGHTS).chmod(0o644)  # safetensors makes it private, but a cache may be shared
    step(3)
    _write_json(into / "config.json", _clean_config(model))
    _write_json(into / "generation_config.json", _clean_generation(model))
    return Converted(sum(t.numel() for t in tensors.values()), str(dtype).removeprefix("torch."))


def _without_ties(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every storage once, under its first name (the embedding before a tied output layer)."""
    seen: set[int] = set()
    out: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            out[name] = tensor.detach().contiguous()
    return out


def _clean_config(model: Any) -> dict[str, Any]:
    config = model.config.to_dict()
    for key in _CLUTTER:
        config.pop(key, None)
    config["architectures"] = [type(model).__name__]
    cleaned: dict[str, Any] = _shortest(config)
    return cleaned


def _clean_generation(model: Any) -> dict[str, Any]:
    keys = ("bos_token_id", "eos_token_id", "pad_token_id")
    values = {key: getattr(model.generation_config, key, None) for key in keys}
    return {key: value for key, value in values.items() if value is not None}


def _shortest(value: Any) -> Any:
    """GGUF keeps float32, which reads back as 9.999999747378752e-06; write 1e-05."""
    import numpy as np

    if isinstance(value, dict):
        return {key: _shortest(v) for key, v in value.items()}
    if isinstance(value, float) and float(np.float32(value)) == value:
        return float(str(np.float32(value)))
    return value


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, default=str) + "\n", "utf-8")


@contextmanager
def _refusals(gguf: Path) -> Iterator[None]:
    """transformers' many ways to say no, as one error with a remedy."""
    try:
        yield
    except (ValueError, KeyError, NotImplementedError, RuntimeError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's fault, not the file's
        raise CheckpointError(
            f"{gguf.name} cannot be converted: {str(error).strip().splitlines()[0]}",
            "Use the model's safetensors version with --target instead.",
        ) from error


@contextmanager
def _disk_errors(place: Path) -> Iterator[None]:
    """safetensors reports a failed write as an error of its own; say what the system said."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))
        raise OSError(int(code[1]) if code else errno.EIO, str(error), str(place)) from error


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Keep transformers' own bars and advice off the terminal."""
    from transformers.utils import logging as chatter

    bars, level = chatter.is_progress_bar_enabled(), chatter.get_verbosity()
    chatter.disable_progress_bar()
    chatter.set_verbosity(logging.ERROR)
    try:
        # One of its bars heeds no switch.
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        chatter.set_verbosity(level)
        if bars:
            chatter.enable_progress_bar()

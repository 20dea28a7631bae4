"""Writing a drafter directory in the public DFlash/Domino layout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dartree_core.draft.checkpoint import VOCAB_IDS


def write_drafter(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    vocab_ids: Tensor | None,
    card: str,
    *,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Write `config.json`, `model.safetensors` and `README.md`.

    Each file is replaced as a whole, so that a reader never meets half of one.

    Args:
        folder: Made where it is missing.
        config: As `design.drafter_config` gives it.
        tensors: Weights on raw inputs, by their public names.
        vocab_ids: Target ids of the head's rows, or None for the whole vocabulary.
        card: The model card, Markdown.
        dtype: Of the stored weights.
    """
    from safetensors.torch import save

    folder.mkdir(parents=True, exist_ok=True)
    stored = {n: t.detach().to("cpu", dtype).contiguous() for n, t in tensors.items()}
    if vocab_ids is not None:
        stored[VOCAB_IDS] = vocab_ids.to("cpu", torch.int32).contiguous()
    partial = folder / ".model.safetensors.partial"
    # `save_file` would leave a file that only its owner can read.
    partial.write_bytes(save(stored, metadata={"format": "pt"}))
    partial.replace(folder / "model.safetensors")
    replace_text(folder / "config.json", json.dumps(config, indent=2) + "\n")
    replace_text(folder / "README.md", card)


def replace_text(path: Path, text: str) -> None:
    """Write a file as a whole: a reader, or a kill, never meets half of it."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)

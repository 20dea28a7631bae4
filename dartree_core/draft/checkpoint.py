"""Reading a drafter checkpoint: configuration, tensors, and a strict account of both."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from dartree_core.draft import speculators
from dartree_core.draft.dflash import DFlashBackbone
from dartree_core.draft.heads import CorrectionHead, make_head
from dartree_core.draft.spec import DraftSpec
from dartree_core.errors import CheckpointError

VOCAB_IDS = "draft_vocab_ids"
"""Tensor of target ids, int `[draft_vocab_size]`, in checkpoints with a reduced vocabulary."""
_EMBEDDING, _OUTPUT = "embed_tokens.weight", "lm_head.weight"
_BARE = (
    "candidate_selector.predecessor_codebook",
    "candidate_selector.successor_codebook",
    "markov_head.markov_w1",
    "markov_head.markov_w2",
)
"""Tables that some files store under their module's own name."""


@dataclass(slots=True)
class DraftCheckpoint:
    """A drafter as read from disk, not yet bound to a target.

    Attributes:
        spec: Shapes and conventions.
        backbone, head: Modules with the checkpoint's weights, on the CPU, in its dtype.
        vocab_ids: Target ids of the drafter's rows, or None for the whole vocabulary.
        path: Where it came from.
        embedding: `[vocab_size, H]`, a token table of the drafter's own, or None.
        output: `[draft_vocab_size, H]`, an output table of its own, or None.
    """

    spec: DraftSpec
    backbone: DFlashBackbone
    head: CorrectionHead
    vocab_ids: Tensor | None
    path: Path
    embedding: Tensor | None = None
    output: Tensor | None = None


def read_checkpoint(path: str | Path) -> DraftCheckpoint:
    """Load `config.json` and all `*.safetensors` of a directory.

    Raises:
        CheckpointError: Files are missing or damaged, the kind is unsupported, or a tensor is
            missing, left over or of the wrong shape (each named).
    """
    folder = Path(path)
    config = _read_config(folder)
    spec = DraftSpec.from_config(config)
    tensors = {_modern_name(name): t for name, t in _read_tensors(folder).items()}
    vocab_ids = tensors.pop(VOCAB_IDS, None)
    if speculators.is_speculators(config):
        vocab_ids = speculators.take_vocabulary(tensors, spec.draft_vocab_size != spec.vocab_size)
    if vocab_ids is None and spec.draft_vocab_size != spec.vocab_size:
        raise CheckpointError(
            f"The drafter in {folder} has a reduced vocabulary but no {VOCAB_IDS!r} or 'd2t' "
            "tensor.",
            "Without it rows cannot be mapped to target ids; fetch the checkpoint again.",
        )
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    backbone, head = DFlashBackbone(spec), make_head(spec, found)
    tables = {
        _EMBEDDING: (spec.vocab_size, spec.hidden_size),
        _OUTPUT: (spec.draft_vocab_size, spec.hidden_size),
    }
    wanted = {
        **{n: tuple(t.shape) for n, t in {**backbone.state_dict(), **head.state_dict()}.items()},
        **{name: shape for name, shape in tables.items() if name in found},
    }
    _account(folder, wanted, found)
    for module in (backbone, head):
        names = module.state_dict().keys()
        module.load_state_dict({n: tensors[n] for n in names}, strict=True, assign=True)
        module.requires_grad_(False)
        module.eval()
    return DraftCheckpoint(
        spec, backbone, head, vocab_ids, folder, tensors.get(_EMBEDDING), tensors.get(_OUTPUT)
    )


def _read_config(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(
            f"There is no readable drafter configuration at {file}.",
            "Give a directory with config.json and model.safetensors.",
        ) from error
    except ValueError as error:
        raise CheckpointError(
            f"{file} is not valid JSON ({error}).", "Fetch the checkpoint again."
        ) from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{file} is not a JSON object.", "Fetch the checkpoint again.")
    return config


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickles = sorted([*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")])
        if pickles:
            raise CheckpointError(
                f"{folder} holds only pickled weights ({pickles[0].name}), which can run code "
                "when loaded.",
                "Convert them to safetensors first.",
            )
        raise CheckpointError(
            f"{folder} holds no .safetensors file.", "Fetch the checkpoint again."
        )
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            tensors.update(load_file(file))
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{file} is damaged ({error}).", "Fetch the checkpoint again."
            ) from error
    return tensors


def _modern_name(name: str) -> str:
    """Early files nest the head, some tools prefix everything with `model.`, and bare tables
    lack the name of their only parameter."""
    for prefix in ("model.", "logit_head."):
        name = name.removeprefix(prefix)
    return f"{name}.weight" if name in _BARE else name


def _account(
    folder: Path, wanted: Mapping[str, Sequence[int]], found: Mapping[str, Sequence[int]]
) -> None:
    missing = sorted(set(wanted) - set(found))
    extra = sorted(set(found) - set(wanted))
    wrong = [
        f"{n} is {list(found[n])}, config.json implies {list(wanted[n])}"
        for n in sorted(set(wanted) & set(found))
        if found[n] != wanted[n]
    ]
    problems = []
    if missing:
        problems.append(f"missing {_some(missing)}")
    if extra:
        problems.append(f"left over {_some(extra)}")
    if wrong:
        problems.append(_some(wrong))
    if problems:
        raise CheckpointError(
            f"The tensors in {folder} do not match its config.json: {'; '.join(problems)}.",
            "The checkpoint is damaged or of a kind this version does not load.",
        )


def _some(names: list[str], most: int = 4) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"

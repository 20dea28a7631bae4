"""The `RunStarted` record: what decodes what, where, with which versions."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from dartree_core import __version__
from dartree_core.config import DecodeConfig
from dartree_core.events import RunStarted

if TYPE_CHECKING:
    from dartree_core.draft.drafter import Drafter
    from dartree_core.engine.prompt import Prompt
    from dartree_core.models.target import Target

_PACKAGES = ("torch", "transformers")


def versions() -> dict[str, str]:
    """Versions of what a run's numbers depend on."""
    found = {"python": platform.python_version(), "dartree": __version__}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found


def target_facts(target: Target) -> dict[str, Any]:
    """Name and shapes of a target, for people."""
    return {
        "name": target.label,
        "revision": target.revision,
        "architecture": target.model.__class__.__name__,
        "path": target.path,
        "layers": target.num_layers,
        "hidden_size": target.hidden_size,
        "vocab_size": target.vocab_size,
        "max_positions": target.max_positions,
    }


def drafter_facts(drafter: Drafter | None) -> dict[str, Any]:
    """Name, shapes and conventions of a drafter, for people; empty without one."""
    if drafter is None:
        return {}
    spec = drafter.spec
    return {
        "name": drafter.label,
        "kernel": drafter.path,
        "layers": spec.num_layers,
        "head": spec.head,
        "block_size": spec.block_size,
        "num_slots": spec.num_slots(),
        "mask_token_id": spec.mask_token_id,
        "target_layer_ids": list(spec.target_layer_ids),
        "draft_vocab_size": drafter.vocabulary.size,
    }


def run_started(
    target: Target,
    drafter: Drafter | None,
    bundle: str,
    prompt: Prompt,
    config: DecodeConfig,
    notes: Sequence[str] = (),
) -> RunStarted:
    """The header of a stream."""
    return RunStarted(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        bundle=bundle,
        target=target_facts(target),
        drafter=drafter_facts(drafter),
        device=str(target.device),
        dtype=str(target.weight_dtype).removeprefix("torch."),
        versions=versions(),
        config=config.to_dict(),
        seed=config.sampling.seed,
        prompt=prompt.text,
        prompt_ids=prompt.ids,
        template=prompt.template,
        notes=list(notes),
    )

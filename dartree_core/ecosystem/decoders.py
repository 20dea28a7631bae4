"""Decoders for models that belong to somebody else, kept for as long as those live."""

from __future__ import annotations

import threading
import warnings
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from dartree_core.engine import Decoder
from dartree_core.errors import BundleError, CheckpointError
from dartree_core.models import Target
from dartree_core.models.selfcheck import check_rows

if TYPE_CHECKING:
    from dartree_core.draft.drafter import Drafter

Key: TypeAlias = tuple[str, ...]

_KEPT: weakref.WeakKeyDictionary[Any, dict[Key, Decoder]] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


def decoder_for(model: Any, drafter: str | Path | Drafter | None, *, needed: bool) -> Decoder:
    """A decoder over `model`, the same one for the same model and drafter.

    It refers to the model (or to a drafter that was passed in) only weakly, so keeping the
    decoder keeps neither alive.

    Args:
        model: Any model that `Target` accepts; it stays as it is.
        drafter: A folder, a hub id, a drafter bound to this model, or None for the published one.
        needed: False to decode plainly, without looking for a drafter.

    Raises:
        BundleError: No drafter was named and none is known, or it cannot be fetched.
        CheckpointError: The model or drafter is of an unsupported kind, or they do not fit.
    """
    from dartree_core.draft.drafter import Drafter as Loaded

    with _LOCK:
        if isinstance(drafter, Loaded):
            return _with_loaded(model, drafter)
        name = "" if not needed else str(drafter or "") or _published(model)
        kept = _KEPT.setdefault(model, {})
        key = (name, *_place(model))
        if key not in kept:
            kept[key] = _load(model, name)
        return kept[key]


def _with_loaded(model: Any, drafter: Drafter) -> Decoder:
    if drafter.target.model is not model:
        raise CheckpointError(
            "The drafter was loaded for another model object.",
            "Load it with load_drafter(path, Target(model)), or pass its folder or hub id.",
        )
    kept = _KEPT.setdefault(drafter, {})
    key = _place(model)
    if key != (str(drafter.target.device), str(drafter.target.dtype)):
        raise CheckpointError(
            f"The model has moved to {' '.join(key)} since the drafter was loaded for it.",
            "Load the drafter again, or pass its folder or hub id.",
        )
    if key not in kept:
        target: Any = weakref.proxy(drafter.target)
        proxy: Any = weakref.proxy(drafter)
        kept[key] = Decoder(target, proxy, memory=_memory())
    return kept[key]


def _place(model: Any) -> Key:
    """Where the model is now: whoever moves it gets a drafter that has moved, too."""
    table = model.get_input_embeddings().weight
    return str(table.device), str(table.dtype)


def _load(model: Any, name: str) -> Decoder:
    proxy: Any = weakref.proxy(model)
    target = Target(proxy, label=str(getattr(model, "name_or_path", "")))
    target.notes = check_rows(target)
    for note in target.notes:
        warnings.warn(note, stacklevel=2)
    if not name:
        return Decoder(target)
    from dartree_core.bundles.resolution import named_draft
    from dartree_core.draft import load_drafter

    found = named_draft(name)
    drafter = load_drafter(found.path, target, label=found.label)
    return Decoder(target, drafter, memory=_memory())


def _published(model: Any) -> str:
    """Hub id of the drafter that is published for this model."""
    from dartree_core.bundles import registry
    from dartree_core.bundles.registry import HubSource

    own = str(getattr(model, "name_or_path", "") or "")
    bundle = registry.paired_with(own) if own else None
    if bundle is None or not isinstance(bundle.draft, HubSource):
        raise BundleError(
            f"No drafter is known for {own or 'this model'}.",
            'Name one: drafter="folder or hub id", or method="ar" to decode plainly.',
        )
    return bundle.draft.repo


def _memory() -> Any:
    from dartree_core.bundles import cache
    from dartree_core.models.memory import Memory

    return Memory(cache.home() / "measured.json")

"""Where a field of a drafter's `config.json` may live."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dartree_core.errors import CheckpointError

REQUIRED: Any = object()
"""Default of a field that must be there."""


class Fields:
    """Look-up through the places of a configuration: newer files nest what older ones spread.

    `dflash_config` comes first, then the top level, then the `text_config` of a multimodal file.
    A field that is null counts as absent.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.inner: Mapping[str, Any] = config.get("dflash_config") or {}
        self.text: Mapping[str, Any] = config.get("text_config") or config

    def __call__(self, name: str, default: Any = REQUIRED) -> Any:
        """The field's value, or `default`.

        Raises:
            CheckpointError: It is nowhere, and there is no default.
        """
        for place in (self.inner, self.config, self.text):
            if place.get(name) is not None:
                return place[name]
        if default is REQUIRED:
            raise CheckpointError(
                f"The drafter's config.json has no {name!r}.",
                "It is not a DFlash drafter, or the file is incomplete; fetch it again.",
            )
        return default

    def first(self, *names: str) -> Any:
        """The first of several spellings that is there, or None."""
        return next((v for v in (self(n, None) for n in names) if v is not None), None)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Class names and model type, as the file states them.

        DFlash classes have Qwen3 layers whatever the model type, which is often their target's.
        """
        classes = [str(name) for name in self.config.get("architectures") or ()]
        if any("dflash" in name.lower() for name in classes):
            return tuple(classes)
        return (*classes, str(self.config.get("model_type") or ""))

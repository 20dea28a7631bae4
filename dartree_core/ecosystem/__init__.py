"""DARTree inside other libraries: `transformers.generate` decodes with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dartree_core.lazy import exports

if TYPE_CHECKING:
    from dartree_core.ecosystem.entry import custom_generate, generate
    from dartree_core.ecosystem.repository import write_custom_generate

__all__ = ["custom_generate", "generate", "write_custom_generate"]

__getattr__ = exports(
    __name__,
    {
        "custom_generate": "dartree_core.ecosystem.entry",
        "generate": "dartree_core.ecosystem.entry",
        "write_custom_generate": "dartree_core.ecosystem.repository",
    },
)

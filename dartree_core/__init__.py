"""DARTree: lossless speculative decoding with autoregressive draft trees (arXiv 2608.13524)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dartree_core.lazy import exports

__version__ = "0.1.0"

__all__ = [
    "DecodeConfig",
    "Decoder",
    "SamplingConfig",
    "Target",
    "TreeConfig",
    "build_dartree",
    "custom_generate",
    "load",
    "load_drafter",
    "write_custom_generate",
]

if TYPE_CHECKING:
    from dartree_core.bundles import load
    from dartree_core.config import DecodeConfig, SamplingConfig, TreeConfig
    from dartree_core.draft import load_drafter
    from dartree_core.draft.builders import build_dartree
    from dartree_core.ecosystem import custom_generate, write_custom_generate
    from dartree_core.engine import Decoder
    from dartree_core.models import Target

__getattr__ = exports(
    __name__,
    {
        "DecodeConfig": "dartree_core.config",
        "SamplingConfig": "dartree_core.config",
        "TreeConfig": "dartree_core.config",
        "build_dartree": "dartree_core.draft.builders",
        "custom_generate": "dartree_core.ecosystem",
        "Decoder": "dartree_core.engine",
        "load_drafter": "dartree_core.draft",
        "Target": "dartree_core.models",
        "write_custom_generate": "dartree_core.ecosystem",
        "load": "dartree_core.bundles",
    },
)

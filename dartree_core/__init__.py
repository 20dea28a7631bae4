"""DARTree: lossless speculative decoding with autoregressive draft trees (arXiv 2608.13524)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dartree_core.lazy import exports

__version__ = "0.1.0"

__all__ = ["DecodeConfig", "Decoder", "SamplingConfig", "TreeConfig", "build_dartree", "load"]

if TYPE_CHECKING:
    from dartree_core.bundles import load
    from dartree_core.config import DecodeConfig, SamplingConfig, TreeConfig
    from dartree_core.draft.builders import build_dartree
    from dartree_core.engine import Decoder

__getattr__ = exports(
    __name__,
    {
        "DecodeConfig": "dartree_core.config",
        "SamplingConfig": "dartree_core.config",
        "TreeConfig": "dartree_core.config",
        "build_dartree": "dartree_core.draft.builders",
        "Decoder": "dartree_core.engine",
        "load": "dartree_core.bundles",
    },
)

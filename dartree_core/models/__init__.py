"""The target model, its key/value cache, and how it is loaded."""

from __future__ import annotations

from dartree_core.models.device import pick_device, pick_dtype
from dartree_core.models.kv_cache import KVCache
from dartree_core.models.lean import LeanTarget
from dartree_core.models.loading import load_target, load_tokenizer
from dartree_core.models.target import Target, TargetOutput

__all__ = [
    "KVCache",
    "LeanTarget",
    "Target",
    "TargetOutput",
    "load_target",
    "load_tokenizer",
    "pick_device",
    "pick_dtype",
]

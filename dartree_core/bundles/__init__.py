"""Bundles: a target with the drafter and head made for it, by name, fetched once and cached."""

from __future__ import annotations

from dartree_core.bundles.cache import home
from dartree_core.bundles.loading import load
from dartree_core.bundles.progress import Progress
from dartree_core.bundles.registry import DEFAULT, Bundle, bundles, get, names
from dartree_core.bundles.resolution import ResolvedBundle, ResolvedModel, resolve

__all__ = [
    "DEFAULT",
    "Bundle",
    "Progress",
    "ResolvedBundle",
    "ResolvedModel",
    "bundles",
    "get",
    "home",
    "load",
    "names",
    "resolve",
]

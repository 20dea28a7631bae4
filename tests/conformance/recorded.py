"""The recorded reference: what is in the conformance folder, found by name and content.

`DARTREE_CONFORMANCE` names another folder of the same format; nothing here knows how many pairs,
prompts or configurations there are.
"""

from __future__ import annotations

import functools
import gzip
import json
import os
from pathlib import Path
from typing import Any

import torch

from dartree_core.config import DecodeConfig, TreeConfig
from dartree_core.draft import Drafter, load_drafter
from dartree_core.engine import Decoder
from dartree_core.models import load_target

ROOT = Path(os.environ.get("DARTREE_CONFORMANCE") or Path(__file__).parent / "data")

TIE = 2e-5
"""Below this margin rounding may decide, and a comparison says nothing."""
LOOSE_ORDER = 1e-4
"""Below this gap between neighbours, trees are compared as sets of paths (README)."""
SCORE = 2e-4
"""Absolute tolerance for summed fp32 log-probabilities."""


@functools.cache
def read(path: Path) -> Any:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        return json.load(file)


def files(pattern: str) -> list[Path]:
    return sorted(ROOT.glob(pattern))


@functools.cache
def pairs() -> dict[str, tuple[str, str]]:
    """Pair name to (target, drafter), from every file that says so."""
    found: dict[str, tuple[str, str]] = {}
    for path in [*files("generate/*.json*"), *files("builder/*.json*")]:
        data = read(path)
        if isinstance(data, dict) and {"pair", "target", "draft"} <= data.keys():
            found[data["pair"]] = (data["target"], data["draft"])
    return found


@functools.cache
def decoder(pair: str) -> Decoder:
    target_name, draft_name = pairs()[pair]
    folder = ROOT / "checkpoints"
    target = load_target(
        folder / target_name, device=torch.device("cpu"), dtype=torch.float32, lean=True
    )
    return Decoder(target, load_drafter(folder / draft_name, target))


def drafter(pair: str) -> Drafter:
    found = decoder(pair).drafter
    assert found is not None
    return found


def tree_config(knobs: dict[str, Any]) -> TreeConfig:
    return TreeConfig(
        budget=knobs["tree_budget"],
        width=knobs["supertree_width"],
        candidates=knobs["candidate_vocab_size"],
        expansion_k=knobs["expansion_k"],
        depth_bonus=knobs["depth_bonus"],
    )


def decode_config(knobs: dict[str, Any], **more: Any) -> DecodeConfig:
    method = {"pruned": "dartree", "fixed": "dartree-fixed"}[knobs["variant"]]
    return DecodeConfig(method=method, tree=tree_config(knobs), **more)  # type: ignore[arg-type]


def paths(tokens: list[int], parents: list[int]) -> set[tuple[int, ...]]:
    """Root-to-node token paths; `tokens` leaves the root out, `parents` does not."""
    found: list[tuple[int, ...]] = [()]
    for i, token in enumerate(tokens, start=1):
        found.append((*found[parents[i]], token))
    return set(found[1:])


def tied(margins: dict[str, float | None], *names: str) -> bool:
    """True when one of the named margins is too small to compare across."""
    values = [margins.get(name) for name in names]
    return any(v is not None and v < TIE for v in values)

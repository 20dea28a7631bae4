"""Two reports of the same measurements, side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dartree_core.bench.report import REPORT_FORMAT
from dartree_core.bench.stats import ratio
from dartree_core.errors import ConfigError

COMPARED = ("mean_acceptance_length", "speedup", "tokens_per_second", "identical")
_SETUP = (
    *("target", "drafter", "device", "dtype", "activation_dtype", "threads", "versions"),
    *("machine", "settings", "datasets"),
)
_MOVES = ("available", "max_positions")
"""Facts that change between two looks at the same machine, or say nothing about speed."""


def read_report(path: Path) -> dict[str, Any]:
    """A report written with `--output`.

    Raises:
        ConfigError: It cannot be read, or is something else.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"The report {path} cannot be read ({error}).",
            "Give a file that dartree bench wrote with --output.",
        ) from error
    if not isinstance(found, dict) or not isinstance(found.get("rows"), list):
        raise ConfigError(
            f"{path} is no report of dartree bench.",
            "Give a file that was written with --output.",
        )
    if found.get("format") != REPORT_FORMAT:
        raise ConfigError(
            f"{path} is a report of format {found.get('format')}; this version reads "
            f"{REPORT_FORMAT}.",
            "Measure again, or use the version that wrote it.",
        )
    return found


def compare_reports(new: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    """What changed from `old` to `new`.

    Returns:
        `rows`: for every measurement in both, each figure as `{"old", "new", "ratio"}`;
        `only_old`, `only_new`: measurements in one only; `setup`: what about machine, models,
        versions, settings and data sets is not the same.
    """
    before = {_key(row): row for row in old["rows"]}
    after = {_key(row): row for row in new["rows"]}
    shared = [key for key in after if key in before]
    return {
        "rows": [
            {
                **{name: after[key][name] for name in ("dataset", "temperature", "key", "variant")},
                "prompts": {"old": before[key]["prompts"], "new": after[key]["prompts"]},
                **{name: _change(before[key], after[key], name) for name in COMPARED},
            }
            for key in shared
        ],
        "only_old": [" · ".join(map(str, key)) for key in before if key not in after],
        "only_new": [" · ".join(map(str, key)) for key in after if key not in before],
        "setup": list(_setup(_circumstances(old, new), _circumstances(new, old))),
    }


def _circumstances(report: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    shared = other.get("datasets", {})
    datasets = {k: v for k, v in report.get("datasets", {}).items() if k in shared}
    return {**report["environment"], "settings": report.get("settings"), "datasets": datasets}


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["dataset"], row["temperature"], row["key"]


def _change(old: Mapping[str, Any], new: Mapping[str, Any], name: str) -> dict[str, Any]:
    before, after = old.get(name), new.get(name)
    return {"old": before, "new": after, "ratio": ratio(after, before)}


def _setup(old: Mapping[str, Any], new: Mapping[str, Any]) -> Sequence[str]:
    found = []
    for name in _SETUP:
        before, after = _flat(name, old.get(name)), _flat(name, new.get(name))
        for key in dict.fromkeys([*before, *after]):
            if before.get(key) != after.get(key) and key.rpartition(".")[2] not in _MOVES:
                found.append(f"{key}: {before.get(key)} then, {after.get(key)} now")
    return found


def _flat(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        out: dict[str, Any] = {}
        for key, inner in value.items():
            out |= _flat(f"{name}.{key}", inner)
        return out
    return {name: value}

"""The lines that `dartree run --profile` adds to a run's figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dartree_core.cli.output import size_text

_NAMES = {"ar_step": "AR step", "verify": "verify pass", "draft": "draft pass"}


def profile_rows(profile: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Label and text of every line; `profile` is `Profile.to_dict()`."""
    stages = "  ".join(
        f"{name} {stage['ms']:.2f} ({stage['share']:.0%})"
        for name, stage in profile["stages"].items()
        if stage["ms"]
    )
    host = profile["host"]
    machine = profile["machine"]
    rows = [
        ("round", f"{profile['round_ms']:.2f} ms: {stages}"),
        ("host", f"{host['ms']:.2f} ms a round outside the models' passes ({host['share']:.1%})"),
    ]
    rows += [(_NAMES[name], _figures(found)) for name, found in profile["passes"].items()]
    rows.append(
        (
            "machine",
            f"copies {size_text(machine['copy_bytes_s'])}/s, multiplies at "
            f"{_rate(machine['flops_s'])} ({machine['path']}, {machine['weight_dtype']}, "
            f"{machine['threads']} threads)",
        )
    )
    return rows


def _figures(found: Mapping[str, Any]) -> str:
    rows = f"{found['rows']} row{'s' if found['rows'] > 1 else ''}"
    return (
        f"{found['ms']:.2f} ms for {rows} and {size_text(found['bytes'])}: "
        f"{size_text(found['bandwidth'])}/s ({found['bandwidth_share']:.0%} of a copy), "
        f"{_rate(found['flop_rate'])} ({found['flop_share']:.0%} of a product)"
    )


def _rate(flops: float) -> str:
    value, unit = (flops / 1e12, "TFLOP/s") if flops >= 1e12 else (flops / 1e9, "GFLOP/s")
    return f"{value:.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}"

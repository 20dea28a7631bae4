"""What `dartree bench` prints of a report, and that it keeps it too."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import typer

from dartree_core.cli.bench_places import Places
from dartree_core.cli.output import print_json, stdout_console


class Format(StrEnum):
    """What goes to standard output."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"


def tell(
    report: dict[str, Any],
    form: Format,
    earlier: tuple[dict[str, Any], str] | None,
    places: Places,
) -> None:
    """Print a report and keep it; failing at one does not keep it from the other."""
    try:
        _show(report, form, earlier)
    finally:
        places.write(report)


def _show(report: dict[str, Any], form: Format, earlier: tuple[dict[str, Any], str] | None) -> None:
    from dartree_core.bench.compare import compare_reports

    comparison = None if earlier is None else compare_reports(report, earlier[0])
    if form is Format.JSON:
        print_json(report if comparison is None else {**report, "comparison": comparison})
    elif form is Format.CSV:
        from dartree_core.bench.export import to_csv

        typer.echo(to_csv(report).encode("utf-8", "backslashreplace"), nl=False)
    else:
        from dartree_core.bench.table import print_report, render_comparison

        console = stdout_console()
        print_report(report, console)
        if comparison is not None and earlier is not None:
            console.print()
            console.print(render_comparison(comparison, earlier[1]))

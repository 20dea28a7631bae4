"""The report on a terminal: the papers' table, and what they should print beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from dartree_core.bench.report import AVERAGE

_NAME_WIDTH, _CELL_WIDTH = 24, 16
_EXPLANATION = (
    "τ is the mean acceptance length: tokens a drafting round emits, the bonus token included. "
    "Speedups are medians over prompts against AR, measured beside them through the same code, "
    "decoding only; then the lowest, quartiles, medians with prefill, and outputs equal to AR's."
)


def render(report: Mapping[str, Any], width: int = 100) -> RenderableType:
    """The whole report.

    Args:
        report: As built by `report.build`.
        width: Columns to fit into; data sets that do not fit go into further tables.
    """
    parts: list[RenderableType] = [Text(_EXPLANATION, style="dim"), Text()]
    for temperature in report["settings"]["temperatures"]:
        rows = [r for r in report["rows"] if r["temperature"] == temperature]
        means = [a for a in report["averages"] if a["temperature"] == temperature]
        if rows:
            parts += [Text(f"Temperature {temperature:g}: τ · speedup over AR", style="italic")]
            parts += [*_speed_tables(rows, means, width), Text()]
            for table in _detail_tables(rows, width):
                parts += [table, Text()]
    parts += list(_notes(report))
    return Group(*parts)


def _speed_tables(
    rows: Sequence[Mapping[str, Any]],
    means: Sequence[Mapping[str, Any]],
    width: int,
) -> Iterator[Table]:
    names = list(dict.fromkeys(row["dataset"] for row in rows))
    columns = [*names, AVERAGE] if len(names) > 1 else names
    cells = {(row["dataset"], row["key"]): row for row in rows}
    cells |= {(AVERAGE, mean["key"]): mean for mean in means}
    at_once = max(1, (width - _NAME_WIDTH) // _CELL_WIDTH)
    winners = {name: _fastest(cells, name, means) for name in columns}
    for start in range(0, len(columns), at_once):
        shown = columns[start : start + at_once]
        table = Table(
            box=None,
            pad_edge=False,
            header_style="bold",
        )
        table.add_column("method", no_wrap=True)
        for name in shown:
            table.add_column(name, justify="right", no_wrap=True)
        for mean in means:
            table.add_row(
                mean["variant"],
                *(_cell(cells.get((name, mean["key"])), winners[name]) for name in shown),
            )
        yield table


def _fastest(
    cells: Mapping[tuple[str, str], Mapping[str, Any]],
    name: str,
    means: Sequence[Mapping[str, Any]],
) -> str | None:
    found = [c for m in means if (c := cells.get((name, m["key"]))) and c["speedup"] is not None]
    return max(found, key=lambda cell: cell["speedup"])["key"] if found else None


def _cell(figures: Mapping[str, Any] | None, winner: str | None) -> Text:
    if figures is None or figures["mean_acceptance_length"] is None:
        return Text("–", style="dim")
    text = Text(f"{figures['mean_acceptance_length']:.2f} · {times(figures['speedup'])}")
    if figures["key"] == winner:
        text.stylize("bold green")
    return text


def _detail_tables(rows: Sequence[Mapping[str, Any]], width: int) -> Iterator[Table]:
    """Further figures of every row; those that do not fit beside the names go into more tables."""
    before = [None, *(row["dataset"] for row in rows)]
    names: dict[str, list[str | Text]] = {
        "data set": [
            "" if row["dataset"] == last else row["dataset"]
            for row, last in zip(rows, before, strict=False)
        ],
        "method": [row["variant"] for row in rows],
    }
    room = width + 2 - sum(_width(*column) for column in names.items())  # none follows the last
    figures = _figures(rows)
    while figures:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in names:
            table.add_column(name, no_wrap=True)
        columns, left = list(names.values()), room
        while figures:
            heading, cells = next(iter(figures.items()))
            left -= _width(heading, cells)
            if left < 0 and len(columns) > len(names):
                break
            table.add_column(heading, justify="right", no_wrap=True)
            columns.append(figures.pop(heading))
        for line in zip(*columns, strict=True):
            table.add_row(*line)
        yield table


def _figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[str | Text]]:
    """Heading to cells, one for each row."""
    found: dict[str, list[str | Text]] = {
        "tok/s": [number(row["tokens_per_second"], 1) for row in rows],
        "lowest": [times(row.get("speedup_lowest")) for row in rows],
        "quartiles": [f"{number(r['speedup_q1'])}–{number(r['speedup_q3'])}×" for r in rows],
        "+prefill": [times(row["speedup_with_prefill"]) for row in rows],
        "as AR": [_same(row) for row in rows],
    }
    if any(row["failed"] for row in rows):
        found["failed"] = [
            Text(str(row["failed"]), style="red" if row["failed"] else "") for row in rows
        ]
    if any(row["quality"] is not None for row in rows):
        found["right"] = ["–" if r["quality"] is None else f"{r['quality']:.0%}" for r in rows]
    return found


def _width(heading: str, cells: Sequence[str | Text]) -> int:
    """Terminal cells of a column, its distance from the next included."""
    return max(map(cell_len, map(str, (heading, *cells)))) + 2


def _same(row: Mapping[str, Any]) -> Text:
    if not row["compared"]:
        return Text("–", style="dim")
    equal = round(row["identical"] * row["compared"])
    style = "red" if row["differ_really"] else "" if equal == row["compared"] else "yellow"
    return Text(f"{equal}/{row['compared']}", style=style)


def _notes(report: Mapping[str, Any]) -> Iterator[Text]:
    for note in notes(report):
        yield Text(note, style="yellow")
    for found in report["best"]:
        yield Text.assemble(
            ("Best here", "bold"),
            f" at temperature {found['temperature']:g}: {found['variant']}, "
            f"{times(found['speedup'])} — ",
            (f"dartree run {found['flags']}", "bold"),
        )


def notes(report: Mapping[str, Any]) -> Iterator[str]:
    """What a reader must know before trusting the figures, one sentence each."""
    if report["ended"]:
        yield (
            f"Ended early ({report['ended']}) after {report['cases']} of "
            f"{report['cases_planned']} prompts."
        )
    for method, reason in report["missing"].items():
        yield f"{method} did not run: {reason}."
    own = report["environment"].get("activation_dtype")
    for method, dtype in report["environment"].get("peer_dtypes", {}).items():
        if (dtype, dtype) != (own, report["environment"]["dtype"]):
            yield f"{method} runs a copy of the target in {dtype}."
    for failure in report["failures"][:3]:
        yield (
            f"{failure['variant']} failed on {failure['dataset']} {failure['row']}: "
            f"{failure['error']}"
        )
    if len(report["failures"]) > 3:
        yield f"and {len(report['failures']) - 3} more failures, listed in the JSON report."
    found = report["differences"]
    if found:
        real = sum(bool(d["real"]) for d in found)
        yield (
            f"{len(found)} outputs differ from AR's, {real} of them by more than rounding "
            "explains; the JSON report lists the first difference of each."
        )


def render_comparison(comparison: Mapping[str, Any], name: str) -> RenderableType:
    """What changed since an earlier report.

    Args:
        comparison: As made by `compare.compare_reports`.
        name: Of the earlier report.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("data set", "T", "method"):
        table.add_column(heading, no_wrap=True)
    for heading in ("τ", "speedup", "tok/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in comparison["rows"]:
        table.add_row(
            row["dataset"],
            f"{row['temperature']:g}",
            row["variant"],
            _change(row["mean_acceptance_length"], 2),
            _change(row["speedup"], 2),
            _change(row["tokens_per_second"], 1),
        )
    parts: list[RenderableType] = [Text(f"Against {name}: then → now", style="italic"), table]
    for heading, key in (("only then", "only_old"), ("only now", "only_new")):
        if comparison[key]:
            parts.append(Text(f"{heading}: {', '.join(comparison[key])}", style="dim"))
    parts += [Text(f"not the same setup: {line}", style="yellow") for line in comparison["setup"]]
    return Group(*parts)


def _change(figure: Mapping[str, Any], digits: int) -> Text:
    old, new, share = figure["old"], figure["new"], figure["ratio"]
    text = Text(f"{number(old, digits)} → {number(new, digits)}")
    if share is not None and abs(share - 1) >= 0.005:
        text.append(f" {share - 1:+.0%}", style="green" if share > 1 else "red")
    return text


def number(value: float | None, digits: int = 2) -> str:
    """A figure, or a dash."""
    return "–" if value is None else f"{value:.{digits}f}"


def times(value: float | None) -> str:
    """A speedup, or a dash."""
    return "–" if value is None else f"{value:.2f}×"


def print_report(report: Mapping[str, Any], console: Console) -> None:
    """The report on a console."""
    console.print(render(report, console.width))

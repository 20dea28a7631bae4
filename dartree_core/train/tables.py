"""What `train eval` prints."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from dartree_core.train.evaluate import Row
from dartree_core.train.measure import Accuracy


def accuracy_table(accuracy: Accuracy) -> Table:
    """Per slot, base and corrected."""
    slots = len(accuracy.base)
    table = Table(
        "teacher-forced",
        *(f"slot {i + 1}" for i in range(slots)),
        box=None,
        header_style="bold",
        title=f"Accuracy per slot, {accuracy.blocks:,} whole blocks",
        title_justify="left",
    )
    table.add_row("base", *(f"{x:.3f}" for x in accuracy.base))
    table.add_row("corrected", *(f"{x:.3f}" for x in accuracy.corrected))
    return table


def acceptance_table(rows: Sequence[Row]) -> Table:
    """Variants down, data sets and temperatures across."""
    columns = list(dict.fromkeys((r.data, r.temperature) for r in rows))
    table = Table(
        "tokens per round",
        *(f"{data}\nT={heat:g}" for data, heat in columns),
        box=None,
        header_style="bold",
        title="Acceptance length, bonus token included",
        title_justify="left",
    )
    for variant in dict.fromkeys(r.variant for r in rows):
        cells = []
        for data, heat in columns:
            hit = [r for r in rows if (r.variant, r.data, r.temperature) == (variant, data, heat)]
            cells.append(f"{hit[0].length:.2f}" if hit else "")
        table.add_row(variant, *cells)
    return table

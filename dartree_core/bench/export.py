"""Reports as CSV, for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any


def to_csv(report: Mapping[str, Any]) -> str:
    """The rows of a report, one line each; what is not a single value is left out."""
    rows = report["rows"]
    columns = [
        name
        for name in dict.fromkeys(name for row in rows for name in row)
        if not any(isinstance(row.get(name), list | dict) for row in rows)
    ]
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()

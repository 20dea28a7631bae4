"""Where `dartree bench` keeps what it measured: the report, its journal, and a page."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dartree_core.cli.output import check_writable
from dartree_core.errors import ConfigError, DARTreeError
from dartree_core.parallel.world import World


@dataclass(frozen=True, slots=True)
class Places:
    """Destinations of one run.

    Attributes:
        output: The report, or None to keep neither it nor a journal.
        html: The page, or None.
    """

    output: Path | None
    html: Path | None

    @property
    def journal(self) -> Path | None:
        """The journal beside the report, or None without one."""
        if self.output is None:
            return None
        return self.output.with_name(self.output.name.removesuffix(".json") + ".journal.jsonl")

    def check(self, *, resume: bool = False) -> None:
        """Hours of measuring should not end at a place that cannot be written.

        Raises:
            ConfigError: A place cannot be written, holds an earlier report or run, or there is no
                run to resume.
        """
        from dartree_core.bench.journal import check_place

        if resume and self.output is None:
            raise ConfigError(
                "--resume needs the run's --output.", "Name the report it was keeping."
            )
        if not World.here().leads:
            return  # the first process writes
        for option, path in (("--output", self.output), ("--html", self.html)):
            if path is not None:
                check_writable(path, option)
        if self.output is None or self.journal is None:
            return
        check_place(self.journal, resume=resume)
        if self.output.exists() and not resume:
            raise ConfigError(
                f"{self.output} holds an earlier report, without the journal to go on from.",
                "Choose another --output, or remove it first.",
            )

    def write(self, report: dict[str, Any]) -> None:
        """Keep a report; one without a single case replaces nothing.

        Raises:
            DARTreeError: A place cannot be written; the remedy needs no second measurement.
        """
        if not report["rows"]:
            return
        if self.output is not None:
            _replace(
                self.output,
                json.dumps(report, indent=1, ensure_ascii=False) + "\n",
                "Make room for it, then give the same command with --resume: nothing is measured "
                "again.",
            )
        if self.html is not None:
            from dartree_core.bench.page import to_html

            _replace(
                self.html,
                to_html(report),
                "The report is kept; make the page of it with dartree bench "
                f"--from {self.output} --html FILE."
                if self.output is not None
                else "Choose another place.",
            )


def _replace(path: Path, text: str, remedy: str) -> None:
    """Replace a file whole, so that a failure leaves the earlier one."""
    partial = path.with_name(path.name + ".tmp")
    try:
        partial.write_text(text, encoding="utf-8", errors="backslashreplace")
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise DARTreeError(f"{path} cannot be written ({error}).", remedy) from error

"""The journal of a run: one line per finished case, so that a stopped run can go on."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dartree_core.bench.records import Case
from dartree_core.errors import ConfigError

FORMAT = 1


def check_place(path: Path, *, resume: bool) -> None:
    """Refuse early what `Journal.start` or `Journal.resume` would refuse once models are loaded.

    Raises:
        ConfigError: There is a journal already, or none to resume, or no such folder.
    """
    if not path.parent.is_dir():
        raise ConfigError(
            f"The folder {path.parent} does not exist.", "Create it, or choose another --output."
        )
    if resume and not path.is_file():
        raise ConfigError(f"There is no run to resume at {path}.", "Leave --resume out.")
    if not resume and path.exists():
        raise _taken(path)


def _taken(path: Path) -> ConfigError:
    return ConfigError(
        f"{path} holds an earlier run.",
        "Go on with it by adding --resume, or choose another --output.",
    )


class Journal:
    """Appends cases to a file, each written through before the next is measured.

    Use `Journal.start` or `Journal.resume`.
    """

    def __init__(self, path: Path, cases: Sequence[Case] = ()) -> None:
        self.path = path
        self.cases = list(cases)

    @classmethod
    def start(cls, path: Path, header: Mapping[str, Any]) -> Journal:
        """A new journal; `header` says what is measured, and must match to resume.

        Raises:
            ConfigError: There is one already, or the place cannot be written.
        """
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise _taken(path) from None
        except OSError as error:
            raise ConfigError(
                f"{path} cannot be written ({error}).", "Choose another --output."
            ) from error
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(json.dumps({"format": FORMAT, **header}, ensure_ascii=False) + "\n")
        return cls(path)

    @classmethod
    def resume(cls, path: Path, header: Mapping[str, Any]) -> Journal:
        """The journal of an earlier run; a cut last line is dropped, its case measured again.

        What other processes of that run wrote beside it (`part_of`) becomes part of it.

        Raises:
            ConfigError: There is none, it is damaged, or it measured something else.
        """
        journal = cls._read(path, header)
        for part in journal.parts():
            known = {case.key for case in journal.cases}
            for case in cls._read(part, header).cases:
                if case.key not in known:
                    journal.add(case)
        journal.drop_parts()
        return journal

    def parts(self) -> list[Path]:
        """Journals that other processes of this run left."""
        return sorted(self.path.parent.glob(glob.escape(self.path.stem) + ".rank*.jsonl"))

    def drop_parts(self) -> None:
        """Remove them; their cases are here."""
        for part in self.parts():
            part.unlink(missing_ok=True)

    @classmethod
    def _read(cls, path: Path, header: Mapping[str, Any]) -> Journal:
        try:
            text = path.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"There is no run to resume at {path} ({error}).", "Leave --resume out."
            ) from error
        # The last line may be cut anywhere, inside a character too.
        whole = text[: text.rfind(b"\n") + 1]
        # Not splitlines: answers may hold other line separators.
        lines = whole.split(b"\n")[:-1]
        try:
            found = json.loads(lines[0])
            cases = [Case.from_dict(json.loads(line)) for line in lines[1:]]
        except (IndexError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{path} is no journal of a benchmark, or is damaged ({error}).",
                "Remove it, or choose another --output.",
            ) from error
        _require_same(path, found, {"format": FORMAT, **header})
        if whole != text:
            with path.open("r+b") as file:
                file.truncate(len(whole))
        return cls(path, cases)

    def add(self, case: Case) -> None:
        """Keep a case."""
        self.cases.append(case)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(case.to_dict(), ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())


def part_of(path: Path, rank: int) -> Path:
    """The journal that process `rank` of several keeps beside the first one's at `path`."""
    return path.with_name(f"{path.stem}.rank{rank}.jsonl")


class MemoryJournal:
    """Cases of a run that nobody asked to keep."""

    def __init__(self) -> None:
        self.cases: list[Case] = []

    def add(self, case: Case) -> None:
        """Keep a case."""
        self.cases.append(case)


def _require_same(path: Path, found: Any, wanted: Mapping[str, Any]) -> None:
    plain = json.loads(json.dumps(wanted))
    if found == plain:
        return
    names = [k for k in plain if not isinstance(found, dict) or found.get(k) != plain[k]]
    raise ConfigError(
        f"{path} was measured with another {', '.join(names) or 'setup'}; its figures and new ones "
        "cannot stand in one table.",
        "Give the settings it was started with, or choose another --output.",
    )

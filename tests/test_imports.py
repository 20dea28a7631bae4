"""What may import what. Start-up is instant only while torch stays out of the way."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from collections.abc import Iterable

import pytest

import dartree_core
import dartree_tui

HEAVY = ("torch", "transformers", "numpy")

LIGHT_ROOMS = [
    "dartree_core",
    *(
        f"dartree_core.{room}"
        for room in (
            *("config", "errors", "events", "tree", "trace", "metrics", "summary"),
            *("text", "pieces", "glyphs", "render", "render_run"),
            *("gate", "worker", "worker_protocol", "cli"),
        )
    ),
]
"""Rooms of the core that the terminal app and trace readers use."""

# Imports modules one by one; says which was the first to bring each unwanted package in.
PROBE = """
import importlib, json, sys
modules, unwanted = json.loads(sys.argv[1])
found = {}
for module in modules:
    importlib.import_module(module)
    for package in unwanted:
        if package in sys.modules:
            found.setdefault(package, module)
print(json.dumps(found))
"""

RUN_HELP = """
import json, sys
from {module} import main
sys.argv = [{name!r}, "--help"]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print(json.dumps([p for p in {unwanted!r} if p in sys.modules]))
"""


def probe(modules: Iterable[str], unwanted: Iterable[str]) -> dict[str, str]:
    """Which unwanted package came in first with which module, in a fresh interpreter."""
    argument = json.dumps([list(modules), list(unwanted)])
    done = subprocess.run(
        [sys.executable, "-c", PROBE, argument], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def modules_of(package: str, path: Iterable[str]) -> list[str]:
    """All modules of a package, found without importing them."""
    names = [package]
    for info in pkgutil.iter_modules(path):
        name = f"{package}.{info.name}"
        if info.name == "__main__":
            continue
        if info.ispkg:
            names += modules_of(name, [f"{p}/{info.name}" for p in path])
        else:
            names.append(name)
    return names


def test_the_probe_finds_what_it_looks_for() -> None:
    found = probe(["dartree_core.events", "textual.app"], ["textual"])
    assert found == {"textual": "textual.app"}


def test_light_rooms_import_nothing_heavy() -> None:
    assert probe(LIGHT_ROOMS, (*HEAVY, "textual")) == {}


def test_trace_and_events_do_not_even_import_rich() -> None:
    rooms = ("config", "errors", "events", "tree", "trace", "metrics", "text", "worker_protocol")
    assert probe([f"dartree_core.{room}" for room in rooms], ["rich", "typer"]) == {}


def test_the_terminal_app_imports_nothing_heavy() -> None:
    modules = modules_of("dartree_tui", list(dartree_tui.__path__))
    assert len(modules) > 1
    assert probe(modules, HEAVY) == {}


def test_the_core_never_imports_textual() -> None:
    modules = modules_of("dartree_core", list(dartree_core.__path__))
    assert set(LIGHT_ROOMS) <= set(modules)
    assert probe(modules, ["textual"]) == {}


@pytest.mark.parametrize(
    ("name", "module"), [("dartree", "dartree_core.cli"), ("dartree-tui", "dartree_tui.cli")]
)
def test_help_imports_nothing_heavy(name: str, module: str) -> None:
    code = RUN_HELP.format(module=module, name=name, unwanted=HEAVY)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout or "usage" in done.stdout
    assert json.loads(done.stdout.splitlines()[-1]) == []

"""What the command palette offers: every key's action by name, and the themes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from textual.app import SystemCommand

from dartree_tui.screens.keys import APP_BINDINGS, MAIN_BINDINGS

if TYPE_CHECKING:
    from dartree_tui.app import DartreeApp

_LEFT_OUT = {"escape", "interrupt", "suspend"}


def commands(app: DartreeApp) -> Iterator[SystemCommand]:
    """All commands, those of the main screen first."""
    for binding in (*MAIN_BINDINGS, *APP_BINDINGS):
        if binding.id in _LEFT_OUT:
            continue
        action = binding.action
        if binding in MAIN_BINDINGS and not action.startswith("app."):
            action = f"screen.{action}"
        name = (binding.id or action).replace("-", " ")
        keys = binding.key_display or binding.key.partition(",")[0]
        yield SystemCommand(
            name[0].upper() + name[1:],
            f"{binding.tooltip or binding.description}  ({keys})",
            partial(app.run_main_action, action),
        )
    yield SystemCommand("Theme", "Choose colours", app.search_themes)
    yield SystemCommand("Save settings", "Write the settings file", app.save_settings)

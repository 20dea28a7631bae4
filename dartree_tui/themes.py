"""Finding, loading and watching theme files.

Themes shipped with the program come first; a file of the same name in the user's directory
replaces the shipped one. One broken file never hides the others: it is reported beside them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs
from textual.theme import Theme

from dartree_tui.theme_file import ThemeError, ThemeFile, read_theme

if TYPE_CHECKING:
    from asyncio import Event

__all__ = [
    "DEFAULT_DARK",
    "DEFAULT_LIGHT",
    "ThemeError",
    "ThemeFile",
    "ThemeSet",
    "load_themes",
    "shipped_theme_dir",
    "user_theme_dir",
    "variable_defaults",
    "watch_themes",
]

DEFAULT_DARK = "dartree-dark"
DEFAULT_LIGHT = "dartree-light"


@dataclass(frozen=True, slots=True)
class ThemeSet:
    """Every usable theme, by name, and what is wrong with the files that are not."""

    files: Mapping[str, ThemeFile]
    problems: tuple[ThemeError, ...] = ()

    @property
    def themes(self) -> list[Theme]:
        """The themes, for `App.register_theme`."""
        return [file.theme for file in self.files.values()]


def shipped_theme_dir() -> Path:
    """Themes that came with the program: beside this module in a wheel, `themes/` in a checkout.

    Raises:
        ThemeError: the installation lacks them.
    """
    here = Path(__file__).resolve().parent
    for folder in (here / "themes", here.parent / "themes"):
        if (folder / f"{DEFAULT_DARK}.toml").is_file():
            return folder
    raise ThemeError(
        f"The theme files that belong beside {here} are missing.", "Install dartree again."
    )


def user_theme_dir() -> Path:
    """Where users put their own themes; it need not exist."""
    return platformdirs.user_config_path("dartree") / "themes"


def load_themes(user_dir: Path | None = None) -> ThemeSet:
    """All shipped themes and the user's.

    Args:
        user_dir: The user's themes, `user_theme_dir()` by default.

    Raises:
        ThemeError: the shipped folder is missing. Faults of single files are returned instead.
    """
    files: dict[str, ThemeFile] = {}
    problems: list[ThemeError] = []
    for folder in (shipped_theme_dir(), user_dir or user_theme_dir()):
        for path in sorted(folder.glob("*.toml")):
            try:
                files[path.stem] = read_theme(path)
            except ThemeError as error:
                problems.append(error)
    return ThemeSet(files, tuple(problems))


@cache
def variable_defaults(dark: bool = True) -> Mapping[str, str]:
    """Our CSS variables with the default theme's colours.

    For `App.get_theme_variable_defaults`: a theme of Textual's own, which knows nothing of node
    states, then still shows them.
    """
    name = DEFAULT_DARK if dark else DEFAULT_LIGHT
    return read_theme(shipped_theme_dir() / f"{name}.toml").theme.variables


async def watch_themes(
    user_dir: Path | None = None, stop: Event | None = None
) -> AsyncIterator[ThemeSet]:
    """The themes again each time a file changes in either folder.

    Creates the user's folder if it can, so that the first copy dropped there is seen.

    Args:
        user_dir: As for `load_themes`.
        stop: Ends the iteration when set; cancelling the task does, too.
    """
    from watchfiles import DefaultFilter, awatch

    class TomlOnly(DefaultFilter):
        def __call__(self, change: object, path: str) -> bool:
            return path.endswith(".toml")

    own = user_dir or user_theme_dir()
    folders = [shipped_theme_dir()]
    try:
        own.mkdir(parents=True, exist_ok=True)
    except OSError:
        pass  # a read-only home: there is nothing to watch, and loading still works
    else:
        folders.append(own)
    async for _ in awatch(
        *folders,
        watch_filter=TomlOnly(),
        stop_event=stop,
        debounce=600,
        step=300,  # milliseconds; each step wakes this process up
        recursive=False,
    ):
        yield load_themes(own)

"""One theme file: its format, its validation, and the Textual theme it becomes.

The format is described for users in `themes/README.md`. Beside Textual's own colours a theme
names what *we* show: node states, the origin of tokens, stages of a round, a ramp for the
correction head's score, and the selection. These become CSS variables such as `$state-hit`,
`$provenance-bonus`, `$stage-verify`, `$score-0` … `$score-7`, `$select-path` and `$dim`.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from textual.color import Color, ColorParseError
from textual.css.errors import StylesheetError
from textual.css.stylesheet import Stylesheet
from textual.css.tokenizer import TokenError
from textual.theme import Theme

from dartree_core.errors import DARTreeError
from dartree_core.events import STAGES

SCORE_STEPS = 8
"""Steps of the score ramp, one per eighth block; files give 5 to 8 and are interpolated."""

_BASE_NEEDED = ("foreground", "background", "surface", "panel", "dim", "primary", "accent")
_BASE_OPTIONAL = ("secondary", "warning", "error", "success", "boost")

TABLES: Mapping[str, tuple[str, ...]] = {
    "base": _BASE_NEEDED + _BASE_OPTIONAL,
    "state": ("hit", "walked_past", "unreached", "pruned", "candidate", "bonus"),
    "provenance": ("prefill", "draft", "bonus"),
    "stage": STAGES,
    "score": ("ramp",),
    "select": ("cursor", "path", "children"),
}
"""Tables of a theme file and their keys; all are needed but some of `base`."""

_TOP_KEYS = ("about", "dark", *TABLES, "variables")
_NAME = re.compile(r"[a-z][a-z0-9-]*")


class ThemeError(DARTreeError):
    """A theme file cannot be used; names the file, the key, the fault and the remedy."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class ThemeFile:
    """A valid theme file.

    Attributes:
        path: Where it was read from.
        about: One line for a theme picker.
        theme: Ready for `App.register_theme`; its name is the file's stem.
    """

    path: Path
    about: str
    theme: Theme


def read_theme(path: Path) -> ThemeFile:
    """Read and validate one theme file.

    Raises:
        ThemeError: the file cannot be read, is not TOML, or does not describe a theme.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ThemeError(
            f"{path}: cannot be read ({error.strerror}).", "Check that it exists and its rights."
        ) from error
    except UnicodeDecodeError as error:
        raise ThemeError(f"{path}: is not UTF-8 text.", "Save it as UTF-8.") from error
    except tomllib.TOMLDecodeError as error:
        raise ThemeError(
            f"{path}: is not valid TOML: {error}.",
            'Write key = "value" lines in [tables]; colours need quotes.',
        ) from error
    return parse_theme(data, path)


def parse_theme(data: Mapping[str, Any], path: Path) -> ThemeFile:
    """A theme from the contents of a file; `path` names it and appears in messages.

    Raises:
        ThemeError: see `read_theme`.
    """
    if not _NAME.fullmatch(path.stem):
        raise ThemeError(
            f"{path}: {path.stem!r} cannot name a theme.",
            "Name the file with lower-case letters, digits and hyphens, such as my-theme.toml.",
        )
    _check_keys(path, "", data, _TOP_KEYS)
    about = _typed(path, "about", data.get("about", ""), str, "a line of text in quotes")
    dark = _typed(path, "dark", data.get("dark", True), bool, "true or false")

    variables: dict[str, str] = {}
    base: dict[str, Any] = {}
    for table, keys in TABLES.items():
        values = _typed(path, table, data.get(table), dict, f"a table: add a line [{table}]")
        _check_keys(path, f"{table}.", values, keys)
        if table == "score":
            variables |= _ramp(path, values.get("ramp"))
            continue
        for key in keys:
            if key not in values:
                if table == "base" and key in _BASE_OPTIONAL:
                    continue
                raise ThemeError(
                    f"{path}: {table}.{key} is missing.",
                    f'Add {key} = "#rrggbb" under [{table}].',
                )
            colour = _colour(path, f"{table}.{key}", values[key])
            if table == "base":
                base[key] = colour
            else:
                variables[variable(table, key)] = colour

    # Textual dims text by opacity, which falls below readable contrast on many backgrounds.
    dim = base.pop("dim")
    variables |= {"dim": dim, "text-muted": dim, "foreground-muted": dim}
    for part in ("background", "background-hover", "background-active", "corner-color"):
        variables[f"scrollbar-{part}"] = base["surface"]
    extra = _typed(path, "variables", data.get("variables", {}), dict, "a table of text values")
    for key, value in extra.items():
        variables[key] = _css(path, key, value)
    theme = Theme(name=path.stem, dark=dark, variables=variables, **base)
    return ThemeFile(path, about, theme)


def variable(table: str, key: str) -> str:
    """Name of the CSS variable of a table's key: `state`, `walked_past` → `state-walked-past`."""
    return f"{table}-{key.replace('_', '-')}"


def _check_keys(path: Path, prefix: str, data: Mapping[str, Any], known: Iterable[str]) -> None:
    names = list(known)
    for key in data:
        if key not in names:
            close = difflib.get_close_matches(key, names, n=1)
            hint = f"Did you mean {prefix}{close[0]}? " if close else ""
            listed = ", ".join(names)
            raise ThemeError(
                f"{path}: there is no setting {prefix}{key}.", f"{hint}Known here: {listed}."
            )


def _typed(path: Path, key: str, value: Any, kind: type[Any], need: str) -> Any:
    if not isinstance(value, kind):
        fault = "is missing" if value is None else f"is {value!r}"
        raise ThemeError(f"{path}: {key} {fault}.", f"It must be {need}.")
    return value


def _colour(path: Path, key: str, value: Any) -> str:
    text = _typed(path, key, value, str, 'a colour in quotes, such as "#7fd1b9"')
    try:
        colour = Color.parse(text)
    except ColorParseError as error:
        raise ThemeError(
            f"{path}: {key} is {text!r}, which is not a colour.",
            'Write it as "#rrggbb" or with a CSS name such as "teal".',
        ) from error
    if colour.a < 1 or colour.ansi is not None:
        raise ThemeError(
            f"{path}: {key} is {text!r}, but cells need a solid colour of their own.",
            'Write it as "#rrggbb".',
        )
    return colour.hex6


def _css(path: Path, name: str, value: Any) -> str:
    """The value of one of Textual's variables, tried as its style sheets use it."""
    text: str = _typed(path, f"variables.{name}", value, str, "text in quotes")
    kinds = ("style", "text-style"), ("background", "background"), ("", "color")
    rule = next(rule for part, rule in kinds if part in name)
    sheet = Stylesheet(variables={name: text})
    sheet.add_source(f"* {{ {rule}: ${name}; }}")
    try:
        sheet.parse()
    except (StylesheetError, TokenError) as error:
        raise ThemeError(
            f"{path}: variables.{name} is {text!r}, which no style sheet takes as {rule}.",
            'Write a colour as "#rrggbb" and a text style as "bold" or "none".',
        ) from error
    return text


def _ramp(path: Path, value: Any) -> dict[str, str]:
    need = "a list of 5 to 8 colours, from a token the head thinks unlikely to a certain one"
    steps = _typed(path, "score.ramp", value, list, need)
    if not 5 <= len(steps) <= SCORE_STEPS:
        raise ThemeError(f"{path}: score.ramp has {len(steps)} colours.", f"It must be {need}.")
    colours = [Color.parse(_colour(path, f"score.ramp[{i}]", step)) for i, step in enumerate(steps)]
    ramp = {}
    for i in range(SCORE_STEPS):
        at = i * (len(colours) - 1) / (SCORE_STEPS - 1)
        low = min(int(at), len(colours) - 2)
        ramp[f"score-{i}"] = colours[low].blend(colours[low + 1], at - low).hex6
    return ramp

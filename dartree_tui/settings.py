"""What the user likes: defaults, then the settings file, then the environment.

Every option is a field of one of the sections below, with its help and its choices beside it;
the file, the environment (`DARTREE_TUI_<NAME>`) and the settings screen are all read from there.
"""

from __future__ import annotations

import json
import os
import tempfile
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import platformdirs

from dartree_core.config import PRESETS, DecodeConfig, Method
from dartree_core.errors import ConfigError, DARTreeError
from dartree_core.worker_protocol import TREE_SETTINGS

ENV_PREFIX = "DARTREE_TUI_"
FILE_NAME = "tui.toml"
SAMPLING = ("temperature", "top_k", "top_p")
"""Options whose value may be left to the model."""


def _option(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What decodes, and where."""

    worker: str = _option("", "command that runs the worker, e.g. 'ssh gpu1 dartree worker'")
    bundle: str = _option("demo", "models to load together")
    target: str = _option("", "target model instead of the bundle's: folder, GGUF file or hub id")
    draft: str = _option("", "drafter instead of the bundle's: folder or hub id")
    device: str = _option("auto", "auto, cpu, cuda, cuda:1, mps")
    dtype: str = _option("auto", "auto, float32, bfloat16, float16")
    load_at_start: bool = _option(True, "load the models as soon as the app has painted")
    calibrate: bool = _option(True, "measure plain decoding after loading, for the speedup")


@dataclass(frozen=True, slots=True)
class DecodeSettings:
    """How a turn is decoded. Names and meanings are those of the command line."""

    method: Method = _option("dartree", "who drafts")  # noqa: RUF009 - a string
    budget: int | Literal["auto"] = _option(
        "auto", "B, most draft nodes verified in a round; auto: what pays on this machine"
    )
    width: int = _option(12, "W, nodes kept per depth while the tree grows")
    depth_bonus: float = _option(-0.2, "beta, added per depth to the pruning key; 0 or negative")
    candidates: int = _option(64, "K, candidates per slot")
    graft: bool = _option(True, "let trees copy what followed the same words earlier in the text")
    temperature: float | Literal["model"] = _option(
        "model", "0 is greedy; model: what the model's own files ask for"
    )
    top_k: int | Literal["model"] = _option(
        "model", "keep the k likeliest tokens; 0 keeps all; model: as its files say"
    )
    top_p: float | Literal["model"] = _option(
        "model", "keep the smallest set with this probability; 1 keeps all; model: as its files say"
    )
    seed: int = _option(0, "same seed, same text, whatever the method or the tree")
    max_new_tokens: int = _option(256, "hard limit on the length of an answer")
    detail: Literal["basic", "full"] = _option("full", "full adds ranks and the target's view")
    stages: bool = _option(True, "show every tree growing; costs a little of a small model's speed")

    def to_config(self, model: Mapping[str, Any] = MappingProxyType({})) -> DecodeConfig:
        """The same as the engine wants it, starting from where `dartree run` starts.

        Args:
            model: Sampling settings the loaded model asks for, by name; greedy when empty.

        Raises:
            ConfigError: a value is outside what decoding supports.
        """
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        given = {n: v for n, v in given.items() if n not in SAMPLING or v != "model"}
        preset = PRESETS["auto" if self.budget == "auto" else "paper"]
        return DecodeConfig(tree=preset).with_changes(**{**model, **given})


@dataclass(frozen=True, slots=True)
class UiSettings:
    """How it looks."""

    theme: str = _option("dartree-dark", "a name from the themes folder, or one of Textual's")
    tree: Literal["grid", "outline"] = _option("grid", "draw trees as a grid or indented")
    provenance: bool = _option(False, "shade answers by where their tokens came from")
    frames_per_second: int = _option(10, "repaints per second, 1 to 30")


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """How a conversation starts."""

    system_prompt: str = _option("", "said before every conversation")


@dataclass(frozen=True, slots=True)
class Settings:
    """All of it. `keys` maps the id of a binding (see the help screen) to keys."""

    engine: EngineSettings = field(default_factory=EngineSettings)
    decode: DecodeSettings = field(default_factory=DecodeSettings)
    ui: UiSettings = field(default_factory=UiSettings)
    chat: ChatSettings = field(default_factory=ChatSettings)
    keys: Mapping[str, str] = field(default_factory=dict)

    def changed(self, section: str, **changes: Any) -> Settings:
        """A copy with options of one section replaced.

        Raises:
            ConfigError: an option is unknown or a value does not validate.
        """
        settings = replace(self, **{section: replace(getattr(self, section), **changes)})
        _validate(settings, "settings")
        return settings


SECTIONS: Mapping[str, type[Any]] = {
    "engine": EngineSettings,
    "decode": DecodeSettings,
    "ui": UiSettings,
    "chat": ChatSettings,
}


def settings_path() -> Path:
    """The settings file; it need not exist."""
    return platformdirs.user_config_path("dartree") / FILE_NAME


def options() -> Iterator[tuple[str, Field[Any], Any]]:
    """Every option: its section, its field, its type."""
    for section, cls in SECTIONS.items():
        hints = typing.get_type_hints(cls)
        for f in fields(cls):
            yield section, f, hints[f.name]


def choices_of(hint: Any) -> tuple[str, ...]:
    """The words an option takes, or none when it takes more than words."""
    return typing.get_args(hint) if typing.get_origin(hint) is Literal else ()


def _or_word(hint: Any) -> tuple[Any, tuple[str, ...]]:
    """`int | Literal["auto"]` as its type and its words."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint, ()
    kind, words = typing.get_args(hint)
    return kind, typing.get_args(words)


def applies(section: str, name: str) -> str:
    """When a change of an option counts, in words for the settings screen."""
    if section == "decode":
        return "next round" if name in TREE_SETTINGS else "next turn"
    if section == "engine":
        return "next load"
    return "at once" if section == "ui" else "next conversation"


def load_settings(path: Path | None = None, env: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings file, if there is one, and the environment over it.

    Raises:
        ConfigError: the file is no TOML, an option is unknown, or a value is not valid.
    """
    path = path or settings_path()
    data: dict[str, Any] = {}
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.", "Mend it or move it away.") from error
    unknown = sorted(set(data) - set(SECTIONS) - {"keys"})
    if unknown:
        raise ConfigError(
            f"{path}: there is no section [{unknown[0]}].",
            f"Sections are {', '.join(SECTIONS)} and keys.",
        )
    sections: dict[str, Any] = {}
    for section, cls in SECTIONS.items():
        sections[section] = _section(cls, data.get(section, {}), section, str(path))
    keys = data.get("keys", {})
    if not isinstance(keys, dict) or not all(isinstance(v, str) for v in keys.values()):
        raise ConfigError(f"{path}: [keys] must map names to keys.", 'For example pause = "f5".')
    settings = _with_environment(Settings(**sections, keys=keys), env)
    _validate(settings, str(path))
    return settings


def _section(cls: type[Any], data: Any, section: str, where: str) -> Any:
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: {section} must be a table.", f"Write [{section}] above it.")
    hints = typing.get_type_hints(cls)
    for name, value in data.items():
        if name not in hints:
            raise ConfigError(
                f"{where}: [{section}] has no option {name}.",
                f"Options are {', '.join(hints)}.",
            )
        data[name] = _typed(value, hints[name], f"{where}: [{section}] {name}")
    return cls(**data)


def _typed(value: Any, hint: Any, where: str) -> Any:
    words = choices_of(hint)
    if words:
        if value in words:
            return value
        raise ConfigError(f"{where} is {value!r}.", f"Choose one of {', '.join(words)}.")
    hint, others = _or_word(hint)
    if others and value in others:
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    what = " or ".join((names[hint], *others))
    raise ConfigError(f"{where} is {value!r}.", f"It must be {what}.")


def parse_value(text: str, hint: Any, where: str) -> Any:
    """An option's value from what somebody typed.

    Raises:
        ConfigError: it is not of the option's type.
    """
    if hint is bool:
        known = {"1": True, "true": True, "yes": True, "on": True}
        known |= {"0": False, "false": False, "no": False, "off": False}
        return _typed(known.get(text.strip().lower(), text), hint, where)
    kind, _ = _or_word(hint)
    if kind in (int, float):
        with suppress(ValueError):
            return _typed(kind(text), hint, where)
        return _typed(text, hint, where)
    return _typed(text, hint, where)


def _with_environment(settings: Settings, env: Mapping[str, str]) -> Settings:
    for section, f, hint in options():
        name = ENV_PREFIX + f.name.upper()
        if name in env:
            value = parse_value(env[name], hint, f"environment: {name}")
            part = replace(getattr(settings, section), **{f.name: value})
            settings = replace(settings, **{section: part})
    return settings


def _validate(settings: Settings, where: str) -> None:
    try:
        settings.decode.to_config()
    except DARTreeError as error:
        raise ConfigError(f"{where}: [decode] {error.message}", error.remedy) from error
    if not 1 <= settings.ui.frames_per_second <= 30:
        raise ConfigError(
            f"{where}: [ui] frames_per_second is {settings.ui.frames_per_second}.",
            "Use 1 to 30; 10 is smooth and leaves the decoder its time.",
        )


def to_toml(settings: Settings) -> str:
    """The settings as a commented file that `load_settings` reads back unchanged."""
    lines = ["# Settings of dartree-tui. DARTREE_TUI_<NAME> in the environment overrides them."]
    for section, f, hint in options():
        if f.name == fields(SECTIONS[section])[0].name:
            lines += ["", f"[{section}]"]
        words = choices_of(hint)
        note = f" ({', '.join(words)})" if words else ""
        lines.append(f"# {f.metadata['help']}{note}")
        lines.append(f"{f.name} = {_toml(getattr(getattr(settings, section), f.name))}")
    lines += [
        "",
        "[keys]",
        '# name of a binding = "keys", e.g. pause = "f5,space"; see the help screen',
    ]
    lines += [f"{_toml(name)} = {_toml(keys)}" for name, keys in settings.keys.items()]
    return "\n".join(lines) + "\n"


def _toml(value: bool | int | float | str) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case _:
            return repr(value)


def save_settings(settings: Settings, path: Path | None = None) -> Path:
    """Write the settings file, whole or not at all.

    Raises:
        ConfigError: the folder cannot be written.
    """
    path = path or settings_path()
    write_atomically(path, to_toml(settings))
    return path


def save_changes(given: Settings, now: Settings, path: Path | None = None) -> Path:
    """Write what has changed since the app was given its settings, over what the file says.

    The command line and the environment count for one run alone, and so do not get into the file.

    Raises:
        ConfigError: the file is faulty, or its folder cannot be written.
    """
    settings = load_settings(path, {})
    for section, f, _ in options():
        value = getattr(getattr(now, section), f.name)
        if value != getattr(getattr(given, section), f.name):
            part = replace(getattr(settings, section), **{f.name: value})
            settings = replace(settings, **{section: part})
    _validate(settings, "settings")
    return save_settings(settings, path)


def write_atomically(path: Path, text: str) -> None:
    """Replace a private file in one move, so that no reader ever sees half of it.

    A link stays one; what it points to is replaced.

    Raises:
        ConfigError: the folder cannot be written.
    """
    try:
        real = path.resolve()
        real.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=real.parent, prefix=real.name, suffix=".part")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, real)
        except BaseException:
            Path(part).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}.", "Check the folder's rights."
        ) from error

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dartree_core.config import PRESETS, DecodeConfig
from dartree_core.errors import ConfigError
from dartree_tui.settings import (
    Settings,
    applies,
    load_settings,
    options,
    parse_value,
    save_changes,
    save_settings,
    settings_path,
    to_toml,
    write_atomically,
)


def read(tmp_path: Path, text: str, **env: str) -> Settings:
    path = tmp_path / "tui.toml"
    path.write_text(text, encoding="utf-8")
    return load_settings(path, env)


def test_without_a_file_there_are_defaults() -> None:
    assert load_settings(env={}) == Settings()
    assert not settings_path().exists()


def test_defaults_decode_as_the_engine_does() -> None:
    config = Settings().decode.to_config()
    default = DecodeConfig()
    assert config.tree == PRESETS["auto"]
    assert config.sampling == default.sampling
    assert config.method == default.method


def test_the_file_then_the_environment(tmp_path: Path) -> None:
    text = '[decode]\nbudget = 8\nwidth = 4\ndepth_bonus = 0\n[keys]\npause = "f12"\n'
    found = read(tmp_path, text, DARTREE_TUI_BUDGET="16", DARTREE_TUI_PROVENANCE="yes")
    assert (found.decode.budget, found.decode.width) == (16, 4)
    assert found.decode.depth_bonus == 0.0
    assert found.ui.provenance is True
    assert found.keys == {"pause": "f12"}


BAD = [
    ("[decode]\nbudgets = 3\n", r"no option budgets"),
    ("[colours]\nx = 1\n", r"no section \[colours\]"),
    ("decode = 3\n", "must be a table"),
    ("[decode]\nbudget = 'many'\n", "whole number"),
    ("[decode]\nbudget = true\n", "whole number"),
    ("[decode]\nbudget = 0\n", "budget is 0"),
    ("[decode]\nmethod = 'magic'\n", "Choose one of ar, dflash"),
    ("[decode]\ndepth_bonus = 1.0\n", "depth_bonus"),
    ("[ui]\nprovenance = 'no'\n", "true or false"),
    ("[ui]\nframes_per_second = 99\n", "frames_per_second"),
    ("[keys]\npause = 3\n", "must map names to keys"),
    ("[decode\n", "cannot be read"),
]


@pytest.mark.parametrize(("text", "words"), BAD)
def test_faults_are_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        read(tmp_path, text)
    assert "tui.toml" in str(caught.value)
    assert caught.value.remedy
    assert caught.value.exit_code == 2


def test_a_bad_environment_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="DARTREE_TUI_BUDGET"):
        read(tmp_path, "", DARTREE_TUI_BUDGET="many")


def test_the_written_file_reads_back(tmp_path: Path) -> None:
    settings = (
        Settings()
        .changed("decode", budget=9, temperature=0.25, method="ddtree")
        .changed("chat", system_prompt='Say "hi"\n\ttwice \\ \x7f 日本')
        .changed("ui", provenance=True)
    )
    path = save_settings(settings, tmp_path / "deep" / "tui.toml")
    assert load_settings(path, {}) == settings
    assert path.stat().st_mode & 0o777 == 0o600


@given(st.text())
def test_any_text_survives_the_file(text: str) -> None:
    import tomllib

    if any(0xD800 <= ord(c) <= 0xDFFF for c in text):
        return
    settings = Settings().changed("chat", system_prompt=text)
    assert tomllib.loads(to_toml(settings))["chat"]["system_prompt"] == text


def test_every_option_has_help_and_says_when_it_counts() -> None:
    for section, f, _ in options():
        assert f.metadata["help"]
        assert applies(section, f.name)
    assert applies("decode", "budget") == "next round"
    assert applies("decode", "temperature") == "next turn"


def test_names_are_unique_so_that_the_environment_is_flat() -> None:
    names = [f.name for _, f, _ in options()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("text", "hint", "value"),
    [
        ("auto", int | Literal["auto"], "auto"),
        ("12", int | Literal["auto"], 12),
        ("on", bool, True),
        ("No", bool, False),
        ("3", int, 3),
        ("2", float, 2.0),
        (" x", str, " x"),
    ],
)
def test_typed_values(text: str, hint: Any, value: Any) -> None:
    assert parse_value(text, hint, "x") == value


def test_a_failed_change_changes_nothing() -> None:
    settings = Settings()
    with pytest.raises(ConfigError):
        settings.changed("decode", budget=0)
    assert settings == Settings()
    assert {f.name for f in fields(settings)} == {"engine", "decode", "ui", "chat", "keys"}


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.toml"
    write_atomically(path, "old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(ConfigError, match="No space left"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("x")] == ["x.toml"]


def test_sampling_is_left_to_the_model_until_someone_chooses() -> None:
    asked = {"temperature": 0.6, "top_k": 20, "repetition_penalty": 1.1}
    decode = Settings().decode
    assert decode.to_config().sampling.greedy
    config = decode.to_config(asked)
    assert (config.sampling.temperature, config.sampling.top_k) == (0.6, 20)
    assert config.sampling.repetition_penalty == 1.1
    chosen = Settings().changed("decode", temperature=0.0).decode.to_config(asked)
    assert chosen.sampling.greedy
    assert chosen.sampling.top_k == 20


def test_only_what_was_changed_in_the_app_is_saved(tmp_path: Path) -> None:
    path = tmp_path / "tui.toml"
    text = "[ui]\ntheme = 'nord'\n[decode]\nwidth = 4\n[keys]\npause = 'f12'\n"
    given = read(tmp_path, text, DARTREE_TUI_MAX_NEW_TOKENS="16")
    given = given.changed("engine", worker="ssh gpu1 dartree worker", load_at_start=False)
    now = given.changed("decode", budget=9).changed("ui", theme="dartree-light")
    save_changes(given, now, path)
    found = load_settings(path, {})
    assert (found.decode.budget, found.decode.width, found.ui.theme) == (9, 4, "dartree-light")
    assert found.decode.max_new_tokens == Settings().decode.max_new_tokens
    assert found.engine == Settings().engine
    assert found.keys == {"pause": "f12"}


def test_a_linked_file_stays_linked(tmp_path: Path) -> None:
    real, link = tmp_path / "dotfiles" / "tui.toml", tmp_path / "tui.toml"
    link.symlink_to(real)
    write_atomically(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"

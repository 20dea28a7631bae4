from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dartree_core.errors import ConfigError
from dartree_core.train.recipe import PRESETS, Recipe, preset


@pytest.mark.parametrize("name", PRESETS)
def test_toml_round_trip(name: str, tmp_path: Path) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text(preset(name).to_toml(), encoding="utf-8")
    assert Recipe.from_toml(file) == preset(name)


@given(
    st.floats(1e-6, 1.0),
    st.integers(1, 10**6),
    st.lists(st.integers(0, 99), max_size=6),
    st.booleans(),
)
def test_any_value_survives_toml(lr: float, steps: int, layers: list[int], flag: bool) -> None:
    import tomllib

    recipe = Recipe.from_dict(
        {
            "optimiser": {"lr": lr},
            "run": {"steps": steps},
            "drafter": {"target_layers": layers, "shift_label": flag},
        }
    )
    assert Recipe.from_dict(tomllib.loads(recipe.to_toml())) == recipe


def test_absent_settings_keep_the_base(tmp_path: Path) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text("[run]\nsteps = 7\n", encoding="utf-8")
    recipe = Recipe.from_toml(file, preset("8b"))
    assert recipe.run.steps == 7
    assert recipe.drafter == preset("8b").drafter


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({"runs": {}}, "runs"),
        ({"run": {"step": 3}}, "run.step"),
        ({"run": {"steps": "3"}}, "run.steps"),
        ({"run": {"steps": 3.5}}, "run.steps"),
        ({"run": {"steps": 0}}, "run.steps"),
        ({"run": 3}, "run"),
        ({"run": {"precision": "float8"}}, "float8"),
        ({"drafter": {"shift_label": 1}}, "drafter.shift_label"),
        ({"drafter": {"block_size": 1}}, "block_size"),
        ({"drafter": {"head": "gru"}}, "gru"),
        ({"drafter": {"target_layers": [1.5]}}, "drafter.target_layers"),
        ({"loss": {"soft": 2.0}}, "loss.soft"),
        ({"optimiser": {"ema": -0.1}}, "optimiser.ema"),
        ({"features": {"cache_gb": -1}}, "cache_gb"),
    ],
)
def test_mistakes_are_named(data: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Recipe.from_dict(data)
    assert named in caught.value.message
    assert caught.value.remedy


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        Recipe.from_toml(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("[run\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="not valid TOML"):
        Recipe.from_toml(broken)
    with pytest.raises(ConfigError, match="medium"):
        preset("medium")

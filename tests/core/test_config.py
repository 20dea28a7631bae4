from __future__ import annotations

import json
import math
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dartree_core.config import (
    METHODS,
    DecodeConfig,
    SamplingConfig,
    TreeConfig,
    setting_names,
)
from dartree_core.errors import ConfigError

configs = st.builds(
    DecodeConfig,
    method=st.sampled_from(METHODS),
    tree=st.builds(
        TreeConfig,
        budget=st.integers(1, 1024),
        width=st.integers(1, 64),
        candidates=st.integers(1, 64),
        expansion_k=st.integers(1, 64),
        depth_bonus=st.floats(-5, 0),
        block_size=st.none() | st.integers(2, 32),
    ),
    sampling=st.builds(
        SamplingConfig,
        temperature=st.floats(0, 2),
        top_k=st.integers(0, 100),
        top_p=st.floats(0, 1, exclude_min=True),
        min_p=st.floats(0, 1),
        repetition_penalty=st.floats(0.1, 2),
        seed=st.integers(0, 2**63 - 1),
    ),
    max_new_tokens=st.integers(1, 10**6),
    stop=st.lists(st.text(min_size=1)).map(tuple),
    ignore_eos=st.booleans(),
    detail=st.sampled_from(("basic", "full")),
    stages=st.booleans(),
)


@given(configs)
def test_settings_survive_json(config: DecodeConfig) -> None:
    data = json.loads(json.dumps(config.to_dict(), allow_nan=False))
    assert DecodeConfig.from_dict(data) == config


@given(configs)
def test_every_flat_name_reaches_its_setting(config: DecodeConfig) -> None:
    flat: dict[str, Any] = {}
    for name in setting_names():
        owner = next(o for o in (config, config.tree, config.sampling) if hasattr(o, name))
        flat[name] = getattr(owner, name)
    assert DecodeConfig().with_changes(**flat) == config


def test_absent_keys_take_defaults() -> None:
    assert DecodeConfig.from_dict({}) == DecodeConfig()
    assert DecodeConfig.from_dict({"tree": {"budget": 8}}).tree == TreeConfig(budget=8)


def test_the_papers_settings_are_the_defaults() -> None:
    tree = DecodeConfig().tree
    assert (tree.budget, tree.width, tree.candidates, tree.depth_bonus) == (64, 12, 64, -0.2)


def test_settings_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        DecodeConfig().max_new_tokens = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"budget": 0}, "budget is 0"),
        ({"budget": 1.5}, "budget is 1.5"),
        ({"width": -1}, "width is -1"),
        ({"candidates": 0}, "candidates is 0"),
        ({"expansion_k": 0}, "expansion_k is 0"),
        ({"depth_bonus": 0.1}, "positive bonus could prune a parent"),
        ({"depth_bonus": math.nan}, "depth_bonus is nan"),
        ({"depth_bonus": -math.inf}, "depth_bonus is -inf"),
        ({"block_size": 1}, "block_size is 1"),
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": math.inf}, "temperature is inf"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.1}, "top_p is 1.1"),
        ({"min_p": -0.1}, "min_p is -0.1"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0"),
        ({"repetition_penalty": math.inf}, "repetition_penalty is inf"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**63}, "seed is"),
        ({"method": "eagle"}, "no method 'eagle'"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"detail": "some"}, "no detail level 'some'"),
        ({"stop": ("a", "")}, "empty stop string"),
        ({"bugdet": 4}, "no setting bugdet"),
        ({"depth_bonus": "deep"}, "depth_bonus is 'deep'"),
        ({"block_size": "8"}, "block_size is '8'"),
        ({"block_size": 4.5}, "block_size is 4.5"),
        ({"temperature": None}, "temperature is None"),
        ({"temperature": True}, "temperature is True"),
        ({"top_p": "most"}, "top_p is 'most'"),
        ({"repetition_penalty": [1]}, "repetition_penalty is"),
        ({"stop": 5}, "stop is 5"),
        ({"stop": ["a", 5]}, "stop is"),
        ({"coupled": "no"}, "coupled is 'no'"),
        ({"tree": {"budget": 8}}, "no setting tree"),
        ({"sampling": None}, "no setting sampling"),
        ({"budget": True}, "budget is True"),
        ({"seed": True}, "seed is True"),
        ({"max_new_tokens": True}, "max_new_tokens is True"),
        ({"repetition_penalty": 10**400}, "repetition_penalty is too large"),
        ({"ignore_eos": 1}, "ignore_eos is 1"),
    ],
)
def test_bad_values_are_refused_with_a_remedy(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        DecodeConfig().with_changes(**changes)
    assert caught.value.remedy
    assert caught.value.exit_code == 2


def test_groups_of_settings_are_what_they_say() -> None:
    with pytest.raises(ConfigError, match="groups of settings"):
        DecodeConfig(tree={"budget": 8})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"tree": {"bugdet": 4}}, r"tree\.bugdet"),
        ({"colour": "red"}, "colour"),
        ({"tree": 5}, "tree is 5, but must be an object"),
        ({"sampling": {"temperature": -1}}, "temperature is -1"),
    ],
)
def test_bad_dictionaries_are_refused(data: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        DecodeConfig.from_dict(data)


def test_whole_numbers_and_single_strings_are_taken_as_meant() -> None:
    changed = DecodeConfig().with_changes(temperature=2, repetition_penalty=2, stop="END")
    read = DecodeConfig.from_dict({"sampling": {"temperature": 2}, "stop": "END"})
    for config in (changed, read):
        assert isinstance(config.sampling.temperature, float)
        assert config.sampling.temperature == 2
        assert config.stop == ("END",)
    assert isinstance(changed.sampling.repetition_penalty, float)
    assert DecodeConfig.from_dict({"stop": ["a", "b"]}).stop == ("a", "b")


def test_tiny_temperatures_count_as_greedy() -> None:
    assert SamplingConfig(temperature=9e-6).greedy
    assert not SamplingConfig(temperature=1e-5).greedy

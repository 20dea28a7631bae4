"""Who does what under torchrun."""

from __future__ import annotations

import pytest

from dartree_core.errors import ConfigError
from dartree_core.parallel.launch import Role, role_of
from dartree_core.parallel.world import World

RANKED = {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1"}


@pytest.mark.parametrize(
    ("line", "role"),
    [
        ("run hello", "tensor"),
        ("verify trace.jsonl", "tensor"),
        ("worker", "tensor"),
        ("bench --datasets builtin", "share"),
        ("bench --tp --datasets builtin", "tensor"),
        ("train drafter corpus --out d", "share"),
        ("bench --help", "first"),
        ("--version", "first"),
        ("", "first"),
    ],
)
def test_roles(line: str, role: Role) -> None:
    assert role_of(line.split()) == role


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("train corpus prompts.jsonl", "dartree train corpus"),
        ("models list", "dartree models list"),
        ("doctor", "dartree doctor"),
        ("trace run.jsonl", "dartree trace"),
    ],
)
def test_commands_for_one_process_are_refused(line: str, named: str) -> None:
    with pytest.raises(ConfigError, match=f"{named} uses one process") as caught:
        role_of(line.split())
    assert "without torchrun" in caught.value.remedy


def test_places() -> None:
    assert World.here({}) == World()
    assert World.here({}).alone
    assert World.here({"WORLD_SIZE": "1", "RANK": "0"}).alone
    assert World.here(RANKED) == World(3, 4, 1)
    assert not World.here(RANKED).leads
    assert World.here({"WORLD_SIZE": "2", "RANK": "0"}) == World(0, 2, 0)


@pytest.mark.parametrize("missing", [{"RANK": ""}, {"RANK": "x"}, {"LOCAL_RANK": "one"}])
def test_half_a_place_is_refused(missing: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="torchrun"):
        World.here(RANKED | missing)
    with pytest.raises(ConfigError, match="RANK"):
        World.here({"WORLD_SIZE": "2"})


def test_devices() -> None:
    assert World().device("cuda:3") == "cuda:3"
    assert World(3, 4, 1).device("cuda") == "cuda:1"
    assert World(3, 4, 1).device("cpu") == "cpu"
    with pytest.raises(ConfigError, match="names one device"):
        World(3, 4, 1).device("cuda:0")

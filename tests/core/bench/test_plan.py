from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dartree_core.bench.plan import AXES, PEERS, Plan, parse_sweeps, parse_values, variants
from dartree_core.bench.records import Row
from dartree_core.config import METHODS, DecodeConfig
from dartree_core.errors import ConfigError


def test_plain_decoding_is_always_measured_and_first() -> None:
    assert [v.method for v in variants(["dartree", "ar", "dartree"], {})] == ["ar", "dartree"]


def test_settings_multiply_only_methods_that_use_them() -> None:
    axes = {"budget": [4, 8], "width": [2, 3], "block_size": [4]}
    count = Counter(v.method for v in variants(METHODS, axes))
    assert count == {"ar": 1, "dflash": 1, "domino": 1, "ddtree": 2, "dartree-fixed": 2} | {
        "dartree": 4
    }


def test_labels_tell_siblings_apart_and_say_no_more() -> None:
    found = variants(["dartree"], {"budget": [4, "auto"], "width": [6]})
    assert [v.label for v in found] == ["ar", "dartree B=4", "dartree B=auto"]
    assert variants(["dartree"], {})[1].label == "dartree B=auto"
    assert len({v.key for v in found}) == 3
    assert dict(found[1].settings) == {"budget": 4, "width": 6}


def test_switches_are_named_as_they_are_typed() -> None:
    found = variants(["domino"], {"coupled": [True, False]})
    assert [v.label for v in found] == ["ar", "domino coupled=on", "domino coupled=off"]
    assert [v.key for v in found[1:]] == ["domino coupled=on", "domino coupled=off"]
    assert [v.config(DecodeConfig(), 1.0).tree.coupled for v in found[1:]] == [True, False]


def test_trees_take_budget_auto_and_chains_their_whole_block() -> None:
    budgets = {v.method: v.config(DecodeConfig(), 0.5).tree.budget for v in variants(METHODS, {})}
    assert budgets["dartree"] == budgets["ddtree"] == budgets["dartree-fixed"] == "auto"
    assert isinstance(budgets["domino"], int)
    assert isinstance(budgets["dflash"], int)


def test_a_variant_keeps_what_all_share_and_changes_its_own() -> None:
    base = DecodeConfig().with_changes(seed=7, max_new_tokens=9, top_k=3)
    config = variants(["dartree"], {"candidates": [20], "depth_bonus": [0.0]})[1].config(base, 0.7)
    assert config.method == "dartree"
    assert (config.tree.candidates, config.tree.expansion_k, config.tree.depth_bonus) == (20, 20, 0)
    assert (config.sampling.temperature, config.sampling.seed, config.sampling.top_k) == (0.7, 7, 3)
    assert config.max_new_tokens == 9


def test_peers_are_decoded_with_plain_settings() -> None:
    found = variants(list(PEERS), {"budget": [1, 2]})
    assert [v.method for v in found] == ["ar", *PEERS]
    assert all(v.config(DecodeConfig(), 0.0).method == "ar" for v in found)


@pytest.mark.parametrize(
    ("words", "axes"),
    [
        (["budget=4,8"], {"budget": [4, 8]}),
        (["budget=4,auto width=2"], {"budget": [4, "auto"], "width": [2]}),
        (["budget=4", "budget=8", "block-size=5"], {"budget": [4, 8], "block_size": [5]}),
        (["depth_bonus=0,-0.2"], {"depth_bonus": [0.0, -0.2]}),
        (["coupled=on,off"], {"coupled": [True, False]}),
    ],
)
def test_sweeps(words: list[str], axes: dict[str, object]) -> None:
    assert parse_sweeps(words) == axes


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["budget"], "'budget'"),
        (["budget="], "'budget='"),
        (["colour=1"], "'colour'"),
        (["budget=4,x"], "'x'"),
        (["width=1.5"], "'1.5'"),
        (["budget=,"], "budget"),
        (["coupled=1"], "'1', which is no switch"),
    ],
)
def test_mistyped_sweeps_are_named(words: list[str], named: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(named)) as caught:
        parse_sweeps(words)
    assert caught.value.remedy


def test_unknown_methods_and_impossible_values_are_refused() -> None:
    with pytest.raises(ConfigError, match="'eagle'"):
        variants(["eagle"], {})
    with pytest.raises(ConfigError, match="budget"):
        variants(["dartree"], {"budget": [0]})


@given(st.lists(st.integers(1, 99), min_size=1))
def test_values_are_read_as_written(values: list[int]) -> None:
    assert parse_values("width", ",".join(map(str, values))) == values


@given(
    st.dictionaries(st.text(min_size=1), st.integers(0, 5), max_size=4),
    st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, unique=True),
)
def test_units_cover_the_matrix_a_prompt_of_each_data_set_at_a_time(
    sizes: dict[str, int], temperatures: list[float]
) -> None:
    data = {name: [Row(str(i), ("x",)) for i in range(n)] for name, n in sizes.items()}
    plan = Plan(variants([], {}), data, temperatures, DecodeConfig())
    units = [(name, row.id, t) for name, row, t in plan.units()]
    assert len(units) == len(set(units)) == plan.size == sum(sizes.values()) * len(temperatures)
    order = [int(row) for _, row, _ in units]
    assert order == sorted(order)


def test_every_variant_is_first_in_its_turn() -> None:
    plan = Plan(variants(["ddtree", "dartree"], {}), {}, [0.0], DecodeConfig())
    orders = [plan.rotated(i) for i in range(6)]
    assert Counter(order[0] for order in orders) == dict.fromkeys(plan.variants, 2)
    assert all(sorted(o, key=str) == sorted(plan.variants, key=str) for o in orders)


@pytest.mark.parametrize("temperatures", [[0.0], [0.0, 1.0]])
@pytest.mark.parametrize("sets", [1, 2, 3])
def test_every_variant_is_first_as_often_in_every_cell(
    temperatures: list[float], sets: int
) -> None:
    """Whoever goes first may gain or lose by it, so this must not depend on the method."""
    data = {str(s): [Row(str(i), ("x",)) for i in range(6)] for s in range(sets)}
    plan = Plan(variants(["ddtree", "dartree"], {}), data, temperatures, DecodeConfig())
    first = Counter(
        (name, temperature, plan.rotated(index)[0].key)
        for index, (name, _, temperature) in plan.numbered()
    )
    assert len(first) == 3 * sets * len(temperatures)
    assert set(first.values()) == {2}


def test_every_axis_changes_some_method() -> None:
    assert set(AXES) == {name for v in variants(METHODS, {}) for name in v.uses}

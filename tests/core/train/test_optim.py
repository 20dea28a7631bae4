from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from dartree_core.train.optim import AveragedWeights, learning_rate, make_optimiser
from dartree_core.train.recipe import OptimiserRecipe
from dartree_core.train.stream import VisitOrder, keyed_generator


def test_rate_warms_up_holds_and_falls() -> None:
    recipe = OptimiserRecipe(lr=1.0, warmup=10, anneal=0.5, final_lr=0.1)
    rates = [learning_rate(recipe, step, 100) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9:51] == [1.0] * 42
    assert all(a > b for a, b in pairwise(rates[50:]))
    assert learning_rate(recipe, 100, 100) == pytest.approx(0.1)


def test_plain_cosine_starts_falling_at_once() -> None:
    recipe = OptimiserRecipe(lr=1.0, warmup=0, anneal=1.0, final_lr=0.0)
    assert learning_rate(recipe, 50, 100) == pytest.approx(0.5)


def test_only_matrices_decay() -> None:
    model = nn.Linear(3, 4)
    groups = make_optimiser(model, OptimiserRecipe(weight_decay=0.5)).param_groups
    decays = {p.dim(): g["weight_decay"] for g in groups for p in g["params"]}
    assert decays == {2: 0.5, 1: 0.0}


def test_average_follows_and_swaps_back() -> None:
    parameter = nn.Parameter(torch.zeros(2))
    average = AveragedWeights([parameter], 0.5)
    with torch.no_grad():
        parameter.fill_(1.0)
    average.update(1000)
    assert average.values[0].tolist() == [0.5, 0.5]
    average.swap()
    assert parameter.tolist() == [0.5, 0.5]
    average.swap()
    assert parameter.tolist() == [1.0, 1.0]


def test_every_epoch_visits_every_sample_once_in_its_own_order() -> None:
    order = VisitOrder(7, seed=5)
    first = [order.sample(v) for v in range(7)]
    second = [order.sample(v) for v in range(7, 14)]
    assert sorted(first) == sorted(second) == list(range(7))
    assert first != second
    assert [VisitOrder(7, seed=5).sample(v) for v in range(7)] == first
    assert [VisitOrder(7, seed=6).sample(v) for v in range(7)] != first


def test_generators_differ_by_key() -> None:
    draws = {
        key: torch.rand(1, generator=keyed_generator(0, *key)).item()
        for key in [(), (0,), (1,), (0, 0), (0, 1), (1, 0)]
    }
    assert len(set(draws.values())) == len(draws)


def test_a_windows_samples_are_visited_together_and_equally_often() -> None:
    order = VisitOrder(5, seed=3, repeat=3, window=2)
    visits = [order.sample(v) for v in range(15)]
    groups = [visits[:6], visits[6:12], visits[12:]]
    assert [sorted(map(g.count, set(g))) for g in groups] == [[3, 3], [3, 3], [3]]
    assert sorted({i for g in groups for i in set(g)}) == list(range(5))

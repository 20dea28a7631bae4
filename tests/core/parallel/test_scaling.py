"""The cost model of docs/scaling.md, and that the page shows what the script computes."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[3] / "docs"


def load() -> Any:
    spec = importlib.util.spec_from_file_location("scaling", DOCS / "scaling.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["scaling"] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


scaling = load()
SHAPES = list(scaling.SHAPES.values())


def test_the_page_shows_the_scripts_tables() -> None:
    page = (DOCS / "scaling.md").read_text(encoding="utf-8")
    without_graphs = replace(scaling.H200, host_layer_s=300e-6)
    assert scaling.H200.source in page
    assert scaling.costs_table(scaling.H200, 2048) in page
    assert scaling.break_even_table(scaling.H200, 2048) in page
    assert scaling.costs_table(without_graphs, 2048) in page


def test_parameters_of_published_models() -> None:
    """Embeddings are not read in a pass, and norms are not counted."""
    counts = {name: shape.weights / 1e9 for name, shape in scaling.SHAPES.items()}
    assert counts == pytest.approx({"8B": 7.57, "32B": 31.98, "70B": 69.50}, abs=0.01)


@pytest.mark.parametrize("shape", SHAPES)
def test_one_device_has_nothing_to_join(shape: Any) -> None:
    assert scaling.joint_s(shape, scaling.H200, 1, 65) == 0
    moving = shape.weights * 2 / scaling.H200.bytes_per_s
    assert scaling.pass_s(shape, scaling.H200, 1, 1, 0) == pytest.approx(moving, rel=1e-3)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("gpus", scaling.GPUS)
def test_costs_grow_with_the_tree_and_break_even_is_one(shape: Any, gpus: int) -> None:
    costs = [scaling.round_cost(shape, scaling.H200, gpus, n, 2048) for n in (1, 16, 64, 256)]
    assert costs == sorted(costs)
    nodes = scaling.break_even(shape, scaling.H200, gpus, 3, 2048)
    assert scaling.round_cost(shape, scaling.H200, gpus, nodes, 2048) <= 3
    assert scaling.round_cost(shape, scaling.H200, gpus, nodes + 1, 2048) > 3


def test_a_hopeless_drafter_breaks_even_nowhere() -> None:
    assert scaling.break_even(SHAPES[0], scaling.H200, 8, 1.0, 2048) == 0

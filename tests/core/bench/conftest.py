"""A trained pair small enough that a whole benchmark takes a second."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from dartree_core.bench.plan import Plan, variants
from dartree_core.bench.records import Row
from dartree_core.bench.run import Bench
from dartree_core.bench.setup import prepare
from dartree_core.config import DecodeConfig
from dartree_core.engine import Decoder
from tests.core import tiny

PROMPTS = ([5, 17, 3, 29, 11], [40, 2, 23, 8], [7, 7, 91, 260, 13, 4])


@pytest.fixture(scope="session")
def decoder() -> Decoder:
    torch.set_num_threads(1)
    return tiny.trained("tied")


@pytest.fixture
def rows() -> list[Row]:
    return [Row(f"r{i}", (), tuple(ids)) for i, ids in enumerate(PROMPTS)]


@pytest.fixture
def make(decoder: Decoder, rows: list[Row]) -> Callable[..., Bench]:
    def build(
        methods: Sequence[str] = ("dartree",),
        axes: dict[str, list[Any]] | None = None,
        *,
        data: dict[str, list[Row]] | None = None,
        temperatures: Sequence[float] = (0.0,),
        source: Any = None,
        using: Decoder = decoder,
        asking: dict[str, Any] | None = None,
        repeats: int = 1,
        **settings: Any,
    ) -> Bench:
        base = DecodeConfig().with_changes(**{"max_new_tokens": 20} | settings)
        found = variants(methods, {"budget": [8]} | (axes or {}))
        plan = Plan(found, data or {"ids": rows}, temperatures, base, repeats)
        return prepare(using, plan, asking or {}, lambda: source)

    return build

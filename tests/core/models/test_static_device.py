"""Static bodies stay on their device, at the shapes of a published model.

The meta device computes nothing and knows no values, so whatever asks for one fails; and every
operand of every operation is watched. Both would spoil a recording on CUDA.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dartree_core.bench.synthetic import synthetic_drafter, synthetic_target
from dartree_core.config import Method, TreeConfig
from dartree_core.draft.drafter import Drafter
from dartree_core.draft.packing import pack
from dartree_core.draft.static import RECORDABLE, StaticDraftCache, StaticDrafts
from dartree_core.models import LeanTarget
from dartree_core.models.graphs import Body, Graphs

META = torch.device("meta")
SHAPE = "qwen3-4b"


class OnlyMeta(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, out)):
            if isinstance(leaf, Tensor) and leaf.device != META:
                raise RuntimeError(f"{func} has an operand on {leaf.device}")
        return out


class Watcher:
    """Watches bodies instead of recording them."""

    def record(self, body: Body) -> Callable[[], None]:
        with OnlyMeta():
            body()
        return lambda: None

    def run(self, body: Body) -> None:
        raise AssertionError("a body failed")

    def settle(self) -> None:
        return


@functools.cache
def models() -> tuple[LeanTarget, Drafter]:
    target = synthetic_target(SHAPE, META, torch.bfloat16)
    target.use_static(Graphs(Watcher()))
    return target, synthetic_drafter(SHAPE, target, lean=False)


@pytest.mark.parametrize(
    "wrong",
    [lambda x: x + torch.zeros(4), lambda x: x[torch.arange(2)], lambda x: x.add_(float(x.sum()))],
)
def test_what_leaves_the_device_is_noticed(wrong: Callable[[Tensor], Any]) -> None:
    there = torch.zeros(4, device=META)
    with pytest.raises((RuntimeError, NotImplementedError)):
        Watcher().record(lambda: wrong(there))


@torch.inference_mode()
def test_passes() -> None:
    target, drafter = models()
    cache = target.new_cache()
    for count in (1, 65):
        positions = torch.arange(count) if count > 1 else None
        visible = torch.ones(count, count, dtype=torch.bool).tril() if count > 1 else None
        out = target.forward(
            torch.zeros(count, dtype=torch.int64),
            cache,
            positions=positions,
            visible=visible,
            taps=drafter.taps,
        )
        assert out.features is not None
        assert out.choice is not None
        assert out.logits.shape == (count, 151936)
        assert out.features.shape == (count, 5 * 2560)
        assert out.logits.device == out.features.device == out.choice.device == META
    assert target.graphs is not None
    assert not target.graphs.failures


@pytest.mark.parametrize("method", sorted(RECORDABLE))
@torch.inference_mode()
def test_contexts_blocks_and_trees(method: Method) -> None:
    target, drafter = models()
    cache = drafter.new_cache()
    assert isinstance(cache, StaticDraftCache)
    static = drafter.static
    assert isinstance(static, StaticDrafts)
    drafter.extend(torch.zeros(3, 5 * 2560, dtype=torch.bfloat16, device=META), cache)
    block = drafter.draft(torch.zeros(1, dtype=torch.int64), cache)
    assert block.base_logits.shape == (15, 151936)
    buffers = cache.arena.block(16)
    buffers.ranked = torch.zeros_like(buffers.logits)
    for coupled in (False, True):
        build = functools.partial(static.build, buffers, method, TreeConfig(), 15, coupled=coupled)
        build()  # constants of a tree's shape are made once, the first time it is grown
        Watcher().record(lambda build=build: pack(build()))
    assert target.graphs is not None
    assert not target.graphs.failures

"""The target's cache: growth, compaction in place, and forgetting."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dartree_core.models import KVCache
from tests.core import tiny


def write(cache: KVCache, count: int, mark: int) -> None:
    """A pass's keys and values: row r of layer i holds `mark + r + 1000 i`, negated for values."""
    cache.reserve(cache.length + count)
    for i, layer in enumerate(cache.layers):
        rows = (mark + torch.arange(count) + 1000.0 * i).view(1, 1, count, 1).expand(1, 2, -1, 3)
        keys, values = layer.update(rows, -rows)
        assert keys.shape == values.shape == (1, 2, cache.length + count, 3)


def held(cache: KVCache, layer: int = 0) -> list[float]:
    found: list[float] = cache.layers[layer].keys[0, 0, : cache.length, 0].tolist()
    return found


@given(
    st.lists(
        st.tuples(st.integers(1, 60), st.integers(0, 2**60), st.integers(0, 3)),
        min_size=1,
        max_size=12,
    )
)
def test_any_sequence_of_passes_commits_and_crops(steps: list[tuple[int, int, int]]) -> None:
    """Against a plain list."""
    cache, expected = KVCache(2), []
    for i, (count, choice, crop) in enumerate(steps):
        mark = 100 * i
        write(cache, count, mark)
        rows = [r for r in range(count) if choice >> r & 1]
        cache.commit(torch.tensor(rows, dtype=torch.int64))
        expected += [float(mark + r) for r in rows]
        cut = max(0, len(expected) - crop)
        cache.crop(cut)
        del expected[cut:]
        assert cache.length == len(expected)
        assert held(cache) == expected
        assert held(cache, 1) == [x + 1000 for x in expected]
        values = cache.layers[0].values[0, 1, : cache.length, 2].tolist()
        assert values == [-x for x in expected]


def test_uncommitted_rows_are_overwritten_by_the_next_pass() -> None:
    cache = KVCache(1)
    write(cache, 3, 0)
    cache.commit(torch.tensor([0, 1, 2]))
    write(cache, 5, 100)
    write(cache, 2, 200)
    cache.commit(torch.tensor([1]))
    assert held(cache) == [0, 1, 2, 201]


def test_growth_is_seldom_and_keeps_what_is_committed() -> None:
    cache = KVCache(2)
    capacities = set()
    for i in range(1500):
        write(cache, 1, i)
        cache.commit(torch.tensor([0]))
        capacities.add(cache.capacity)
    assert held(cache) == list(range(1500))
    assert len(capacities) < 8
    assert cache.capacity >= 1500


def test_running_out_of_memory_while_growing_leaves_the_cache_usable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache = KVCache(3)
    write(cache, 5, 0)
    cache.commit(torch.arange(5))
    layer = cache.layers[2]

    def full(capacity: int) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(layer, "grow", full)
        with pytest.raises(MemoryError):
            cache.reserve(cache.capacity + 1)
    write(cache, cache.capacity, 100)
    cache.commit(torch.arange(2))
    assert held(cache) == [0, 1, 2, 3, 4, 100, 101]


def test_compaction_moves_in_place() -> None:
    cache = KVCache(1)
    write(cache, 40, 0)
    cache.commit(torch.arange(10))
    where = cache.layers[0].keys.data_ptr()
    write(cache, 30, 100)
    cache.commit(torch.tensor([0, 7, 19, 29]))
    assert cache.layers[0].keys.data_ptr() == where
    assert held(cache)[10:] == [100, 107, 119, 129]


def test_a_cache_nobody_holds_is_gone_at_once() -> None:
    cache = KVCache(2)
    write(cache, 1, 0)
    alive = weakref.ref(cache)
    gc.disable()
    try:
        del cache
        assert alive() is None
    finally:
        gc.enable()


def test_bytes_held_are_counted() -> None:
    cache = KVCache(2)
    assert cache.nbytes == 0
    write(cache, 1, 0)
    assert cache.nbytes == 2 * 2 * cache.capacity * 2 * 3 * 4


def test_a_failed_pass_leaves_the_committed_rows_alone() -> None:
    target = tiny.target("llama")
    cache = target.new_cache()
    target.forward(torch.tensor(tiny.PROMPT), cache)
    cache.commit(torch.arange(len(tiny.PROMPT)))
    before = [layer.keys[:, :, : cache.length].clone() for layer in cache.layers]
    target.forward(torch.arange(20), cache)
    assert cache.length == len(tiny.PROMPT)
    for layer, kept in zip(cache.layers, before, strict=True):
        assert torch.equal(layer.keys[:, :, : cache.length], kept)

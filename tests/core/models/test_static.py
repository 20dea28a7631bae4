"""Static passes give what passes of their own shape give, recorded or not."""

from __future__ import annotations

import copy
import gc
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dartree_core.draft.supertree import ancestors
from dartree_core.models import LeanTarget, TargetOutput, buckets
from dartree_core.models.arena import Shelf
from dartree_core.models.buckets import MOST_ROWS, length_bucket, row_bucket
from dartree_core.models.graphs import Graphs
from dartree_core.models.lean_cache import LeanCache
from dartree_core.models.static import StaticCache
from tests.core import tiny
from tests.core.fake_graphs import FakeRecorder

TAPS = (0, 2)
CLOSE = {"atol": 2e-4, "rtol": 1e-4}
RECORDERS = {"plain": lambda: None, "recorded": FakeRecorder}


@pytest.fixture(params=sorted(RECORDERS))
def graphs(request: pytest.FixtureRequest) -> Graphs:
    return Graphs(RECORDERS[request.param]())


def target(family: str = "qwen3-padded", graphs: Graphs | None = None) -> LeanTarget:
    lean = LeanTarget(copy.deepcopy(tiny.target(family).model))
    lean.use_static(graphs)
    return lean


class Pair:
    """One conversation with two targets of the same weights; every result is compared."""

    def __init__(self, dynamic: LeanTarget, fixed: LeanTarget) -> None:
        self.targets = (dynamic, fixed)
        self.caches = (dynamic.new_cache(), fixed.new_cache())

    @property
    def length(self) -> int:
        return self.caches[0].length

    def step(self, tokens: Sequence[int], **options: Any) -> TargetOutput:
        rows = torch.tensor(tokens)
        theirs, ours = (
            model.forward(rows, cache, taps=TAPS, **options)
            for model, cache in zip(self.targets, self.caches, strict=True)
        )
        torch.testing.assert_close(ours.logits, theirs.logits, **CLOSE)
        torch.testing.assert_close(ours.features, theirs.features, **CLOSE)
        if ours.choice is not None:
            assert ours.choice.tolist() == ours.logits.argmax(-1).tolist()
        return ours

    def commit(self, rows: Sequence[int]) -> None:
        for cache in self.caches:
            cache.commit(torch.tensor(rows))
        self.compare()

    def crop(self, length: int) -> None:
        for cache in self.caches:
            cache.crop(length)

    def compare(self) -> None:
        theirs, ours = (held(cache) for cache in self.caches)
        torch.testing.assert_close(ours, theirs, **CLOSE)


def held(cache: LeanCache) -> Tensor:
    return cache.data[..., : cache.length, :]


def tokens(count: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, tiny.VOCAB, (count,), generator=generator).tolist()


@given(st.integers(1, MOST_ROWS), st.integers(1, 10**6))
def test_buckets_hold_what_they_are_for(rows: int, length: int) -> None:
    assert rows <= row_bucket(rows) <= min(max(2 * rows, 16), MOST_ROWS)
    assert row_bucket(row_bucket(rows)) == row_bucket(rows)
    assert length <= length_bucket(length) <= max(256, 2 * length)
    assert length_bucket(length_bucket(length)) == length_bucket(length)
    assert length_bucket(length) % 256 == 0


def test_buckets_are_few() -> None:
    assert sorted({row_bucket(n) for n in range(1, 81)}) == [1, 2, 4, 8, 16, 32, 48, 64, 80]
    assert sorted({length_bucket(n) for n in range(1, 4097)}) == [
        *(256, 512, 768, 1024, 1536, 2048, 3072, 4096)
    ]


@pytest.mark.parametrize("family", ["llama", "qwen2-tied", "qwen3-padded"])
def test_every_bucket_agrees(family: str, graphs: Graphs) -> None:
    pair = Pair(target(family), target(family, graphs))
    for round_, count in enumerate((1, 1, 2, 3, 5, 8, 9, 16, 17, 33, 65, 128, 129, 1, 3)):
        pair.step(tokens(count, round_), last_only=count > 8)
        pair.commit(range(min(count, 3)))
    assert not graphs.failures


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_trees_commits_and_crops_agree(data: st.DataObject) -> None:
    pair = Pair(dynamic_target(), recorded_target())
    ids = st.integers(0, tiny.VOCAB - 1)
    prompt = data.draw(st.lists(ids, min_size=1, max_size=12))
    pair.step(prompt)
    pair.commit(range(len(prompt)))
    for _ in range(4):
        size = data.draw(st.integers(1, 12))
        parent = [-1, *(data.draw(st.integers(0, i - 1)) for i in range(1, size))]
        depth = [0]
        for p in parent[1:]:
            depth.append(depth[p] + 1)
        pair.step(
            data.draw(st.lists(ids, min_size=size, max_size=size)),
            positions=pair.length + torch.tensor(depth),
            visible=ancestors(torch.tensor(parent)),
        )
        node, path = data.draw(st.integers(0, size - 1)), []
        while node >= 0:
            path.insert(0, node)
            node = parent[node]
        pair.commit(path)
        if data.draw(st.booleans()):
            pair.crop(data.draw(st.integers(0, pair.length)))


_SHARED: dict[str, LeanTarget] = {}


def dynamic_target() -> LeanTarget:
    return _SHARED.setdefault("dynamic", target())


def recorded_target() -> LeanTarget:
    if "recorded" not in _SHARED:
        _SHARED["recorded"] = target(graphs=Graphs(FakeRecorder()))
    return _SHARED["recorded"]


def test_a_conversation_may_outgrow_its_arena(
    graphs: Graphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "_SMALLEST_ARENA", 256)
    pair = Pair(target(), target(graphs=graphs))
    capacities = set()
    for chunk in range(4):
        pair.step(tokens(200, chunk))
        pair.commit(range(200))
        pair.step(tokens(5))
        capacities.add(pair.caches[1].capacity)
    assert len(capacities) > 1
    pair.compare()


def test_few_idle_arenas_are_kept_and_the_largest_first(graphs: Graphs) -> None:
    model = target(graphs=graphs)
    caches = [model.new_cache() for _ in range(5)]
    for cache in caches:
        model.forward(torch.tensor(tokens(3)), cache)
    with torch.inference_mode():
        caches[3].reserve(2 * caches[0].capacity)
    largest = caches[3].capacity
    del cache, caches
    gc.collect()
    fresh = model.new_cache()
    assert fresh.idle is not None
    assert fresh.idle.capacity == largest
    model.forward(torch.tensor(tokens(3)), fresh)
    assert isinstance(fresh, StaticCache)
    assert len(fresh._shelf._free) == 2
    assert fresh.idle.capacity == largest  # the smallest that fits was lent


def test_idle_arenas_make_room_when_memory_runs_out() -> None:
    made: list[SimpleNamespace] = []

    def make(capacity: int) -> SimpleNamespace:
        if sum(arena.nbytes for arena in held()) + capacity > 10:
            raise torch.OutOfMemoryError
        made.append(SimpleNamespace(capacity=capacity, nbytes=capacity))
        return made[-1]

    def held() -> list[SimpleNamespace]:
        return shelf._free

    shelf = Shelf(make, Graphs(None))
    shelf.put(shelf.take(6))
    assert shelf.take(9).capacity == 9
    assert not shelf._free
    with pytest.raises(torch.OutOfMemoryError):
        shelf.take(11)


def test_padding_touches_nothing_committed(graphs: Graphs) -> None:
    model = target(graphs=graphs)
    cache = model.new_cache()
    model.forward(torch.tensor(tokens(20)), cache)
    cache.commit(torch.arange(20))
    before = held(cache).clone()
    for count in (1, 3, 9, 65):
        model.forward(torch.tensor(tokens(count)), cache)
        assert torch.equal(held(cache), before)


def test_what_was_rejected_leaves_no_trace(graphs: Graphs) -> None:
    """A wide pass, then narrower ones: stale rows and stale inputs lie about everywhere."""
    model = target(graphs=graphs)
    clean, used = model.new_cache(), model.new_cache()
    for cache in (clean, used):
        model.forward(torch.tensor(tokens(6)), cache)
        cache.commit(torch.arange(6))
    for count in (100, 40, 12, 6, 3):
        model.forward(torch.tensor(tokens(count, count)), used)
    for rows in (1, 3, 1, 6):
        ours = model.forward(torch.tensor(tokens(rows, 7)), used).logits.clone()
        assert torch.equal(ours, model.forward(torch.tensor(tokens(rows, 7)), clean).logits)


def test_conversations_in_turn_keep_their_results_apart(graphs: Graphs) -> None:
    model = target(graphs=graphs)
    one, other = model.new_cache(), model.new_cache()
    first = model.forward(torch.tensor(tokens(5)), one)
    kept = first.logits.clone()
    model.forward(torch.tensor(tokens(5, 1)), other)
    assert torch.equal(first.logits, kept)


def test_the_next_conversation_replays_the_recordings_of_the_last() -> None:
    graphs = Graphs(FakeRecorder())
    model = target(graphs=graphs)
    found = []
    for _ in range(3):
        cache = model.new_cache()
        for count in (5, 1, 9, 1):
            out = model.forward(torch.tensor(tokens(count)), cache)
            cache.commit(torch.arange(count))
        found.append(out.logits.clone())
        assert graphs.recorded == 3
        del cache, out
        gc.collect()
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_sessions_keep_the_kind_they_were_begun_with() -> None:
    model = target()
    plain = model.new_cache()
    model.use_static(Graphs())
    model.forward(torch.tensor(tokens(3)), plain)
    assert type(plain) is LeanCache
    assert "static shapes" in model.path
    model.use_static(None)
    assert model.path == f"lean ({model.kernel})"

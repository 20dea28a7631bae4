"""Whole passes in compiled code, for models of sizes that the tiny families do not have."""

from __future__ import annotations

import dataclasses
import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen3Config, Qwen3ForCausalLM

from dartree_core.compiled import shares

if not shares():
    pytest.skip("compiled code cannot share PyTorch's threads here", allow_module_level=True)

from dartree_core.compiled import openmp, passes, products
from dartree_core.compiled.cpu import multiplies_bfloat16, multiplies_int8
from dartree_core.draft.supertree import ancestors
from dartree_core.models import LeanTarget
from dartree_core.models.target import Target

KERNELS = [
    "panels-fp16",
    "panels-fp32",
    pytest.param(
        "panels-bf16",
        marks=pytest.mark.skipif(not multiplies_bfloat16(), reason="no bfloat16 products here"),
    ),
    pytest.param(
        "panels-int8",
        marks=pytest.mark.skipif(not multiplies_int8(), reason="no 8-bit products here"),
    ),
]
CLOSE = {"atol": 3e-4, "rtol": 1e-4}
VOCAB = 67


def both(kernel: str = "panels-fp32", **sizes: int) -> tuple[Target, LeanTarget]:
    """A random model with the tensor path, and one of the same weights in compiled code. Weights
    can be held as float16."""
    named = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 32,
        **sizes,
    }
    config = Qwen3Config(
        vocab_size=VOCAB, num_hidden_layers=2, max_position_embeddings=1024, **named
    )

    def model() -> Any:
        torch.manual_seed(5)
        made = Qwen3ForCausalLM(config).eval().requires_grad_(False)
        for weight in made.parameters():
            weight.copy_(weight.half().float())
        return made

    compiled = LeanTarget(model(), kernel=kernel)
    compiled.compile()
    return Target(model()), compiled


@functools.cache
def target_of(kernel: str) -> LeanTarget:
    """Of sizes that are no whole panels."""
    return both(kernel, intermediate_size=100, head_dim=40)[1]


def agree(pair: tuple[Target, LeanTarget], lengths: list[int], **options: Any) -> None:
    """Passes one behind the other through both."""
    caches = [target.new_cache() for target in pair]
    tokens = torch.randint(0, VOCAB, (sum(lengths),), generator=torch.Generator().manual_seed(1))
    for part in tokens.split(lengths):
        theirs, ours = (
            target.forward(part, cache, taps=(0, 1), **options)
            for target, cache in zip(pair, caches, strict=True)
        )
        torch.testing.assert_close(ours.logits, theirs.logits, **CLOSE)
        torch.testing.assert_close(ours.features, theirs.features, **CLOSE)
        assert ours.choice is not None
        assert ours.choice.tolist() == ours.logits.argmax(-1).tolist()
        for cache in caches:
            cache.commit(torch.arange(len(part)))


@pytest.mark.parametrize("head_dim", [8, 24, 32, 40, 80, 128])
def test_heads_of_any_width(head_dim: int) -> None:
    agree(both(head_dim=head_dim), [40, 1, 7, 2])


@pytest.mark.parametrize("intermediate_size", [96, 100, 31])
@pytest.mark.parametrize("hidden_size", [64, 72])
def test_layers_that_are_no_whole_panels(hidden_size: int, intermediate_size: int) -> None:
    agree(both(hidden_size=hidden_size, intermediate_size=intermediate_size), [5, 1, 3])


@pytest.mark.parametrize(("heads", "shared"), [(1, 1), (4, 1), (16, 16), (26, 13)])
def test_any_number_of_heads_shares_keys(heads: int, shared: int) -> None:
    agree(both(num_attention_heads=heads, num_key_value_heads=heads // shared), [9, 1, 4])


@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.integers(1, 80), min_size=1, max_size=7))
def test_contexts_of_any_length(lengths: list[int]) -> None:
    agree(PAIR, lengths)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("threads", [2, 3, 5])
def test_any_number_of_threads_computes_the_same(
    threads: int, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "_WORTH_SHARING", 0)
    target = target_of(kernel)
    tokens = torch.arange(30) % VOCAB
    before = torch.get_num_threads()
    found = []
    try:
        for count in (1, threads):
            torch.set_num_threads(count)
            cache = target.new_cache()
            found.append(target.forward(tokens, cache, taps=(1,)))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0].logits, found[1].logits)
    assert torch.equal(found[0].features, found[1].features)
    assert found[0].choice.tolist() == found[1].choice.tolist()


@pytest.mark.parametrize("kernel", KERNELS)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_a_verified_path_is_bit_by_bit_what_plain_steps_compute(
    kernel: str, data: st.DataObject
) -> None:
    target = target_of(kernel)
    start = data.draw(st.integers(1, 70))
    size = data.draw(st.integers(2, 30))
    parent = [-1, *(data.draw(st.integers(0, i - 1)) for i in range(1, size))]
    tokens = torch.tensor(
        data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=size, max_size=size))
    )
    depth = [0]
    for p in parent[1:]:
        depth.append(depth[p] + 1)
    tree, plain = target.new_cache(), target.new_cache()
    for cache in (tree, plain):
        target.forward(torch.arange(start) % VOCAB, cache)
        cache.commit(torch.arange(start))
    verified = target.forward(
        tokens,
        tree,
        positions=start + torch.tensor(depth),
        visible=ancestors(torch.tensor(parent)),
        taps=(1,),
    )
    path = [data.draw(st.integers(0, size - 1))]
    while parent[path[0]] >= 0:
        path.insert(0, parent[path[0]])
    for node in path:
        step = target.forward(tokens[node : node + 1], plain, taps=(1,))
        plain.commit(torch.arange(1))
        assert torch.equal(step.logits[0], verified.logits[node])
        assert torch.equal(step.features[0], verified.features[node])
    tree.commit(torch.tensor(path))
    known = slice(0, start + len(path))
    assert torch.equal(tree.data[..., known, :], plain.data[..., known, :])


def test_float16_weights_are_computed_with_as_they_are() -> None:
    agree(both("panels-fp16"), [40, 1, 7, 2])


@pytest.mark.parametrize("kernel", KERNELS[2:])
def test_rounded_rows_come_close(kernel: str) -> None:
    general, rounded = both(kernel)
    tokens = torch.arange(20)
    theirs = general.forward(tokens, general.new_cache()).logits
    ours = rounded.forward(tokens, rounded.new_cache()).logits
    assert float((ours - theirs).norm() / theirs.norm()) < 0.05


def test_threads_of_python_do_not_share_buffers() -> None:
    target = PAIR[1]
    tokens = [torch.arange(30) + shift for shift in range(6)]
    alone = [target.forward(part, target.new_cache()).logits for part in tokens]

    def again(part: torch.Tensor) -> list[torch.Tensor]:
        return [target.forward(part, target.new_cache()).logits for _ in range(20)]

    with ThreadPoolExecutor(3) as pool:
        for found, wanted in zip(pool.map(again, tokens), alone, strict=True):
            assert all(torch.equal(one, wanted) for one in found)


def test_layers_of_other_sizes_are_noticed() -> None:
    target = PAIR[1]
    run = target._pass
    assert run is not None
    wrong = dataclasses.replace(run._shape, intermediate=64)
    with pytest.raises(AssertionError, match="are not the products"):
        passes.CompiledPass(run._layers, np.ones(64, np.float32), wrong, normed=True)


@pytest.mark.parametrize("position", [-1, 1 << 40])
def test_a_position_without_factors_is_an_error(position: int) -> None:
    target = PAIR[1]
    with pytest.raises(IndexError, match="rotary"):
        target.forward(
            torch.zeros(1, dtype=torch.int64),
            target.new_cache(),
            positions=torch.tensor([position]),
        )


def test_small_passes_wake_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    run = passes.loops.run
    monkeypatch.setattr(
        passes.loops, "run", lambda *given: (asked.append(given[2]), run(*given))[1]
    )
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        for rows in (1, 60):
            PAIR[1].forward(torch.zeros(rows, dtype=torch.int64), PAIR[1].new_cache())
    finally:
        torch.set_num_threads(before)
    assert asked == [1, 2]


def test_a_result_outlives_the_next_pass() -> None:
    target = PAIR[1]
    tokens = torch.arange(4)
    first = target.forward(tokens, target.new_cache(), taps=(0,))
    kept = first.logits.clone(), first.features.clone()
    target.forward(tokens + 9, target.new_cache(), taps=(0,))
    assert torch.equal(first.logits, kept[0])
    assert torch.equal(first.features, kept[1])


def test_threads_that_meet_see_what_others_wrote() -> None:
    """In every one of many rounds each thread reads all others' numbers of the round before."""
    import numpy as np
    from numba import njit, typeof, types

    def work(job: Any) -> None:
        place, numbers, wrong = job
        thread, threads = openmp.thread(), openmp.threads()
        for turn in range(2000):
            numbers[turn % 2, thread] = turn
            openmp.meet(place, threads)
            for other in range(threads):
                if numbers[turn % 2, other] != turn:
                    wrong[thread] += 1
            openmp.meet(place, threads)
        wrong[7] = threads

    job = np.zeros(openmp.MEETING, np.int64), np.zeros((2, 8), np.int64), np.zeros(8, np.int64)
    crew = openmp.crew(work)
    njit([(typeof(job), types.int64)])(lambda job, count: crew(job, count))(job, 3)
    assert job[2][:7].tolist() == [0] * 7
    assert job[2][7] == 3


PAIR = both()

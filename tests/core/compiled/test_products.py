"""Products with weights in panels."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dartree_core.compiled import cpu, shares

if not shares():
    pytest.skip("compiled code cannot share PyTorch's threads here", allow_module_level=True)

from dartree_core.compiled.arrays import room
from dartree_core.compiled.cpu import multiplies_bfloat16, multiplies_int8
from dartree_core.compiled.products import Panels
from dartree_core.compiled.tiles import LEVELS, MOST

needs_int8 = pytest.mark.skipif(not multiplies_int8(), reason="no 8-bit products here")
needs_bfloat16 = pytest.mark.skipif(not multiplies_bfloat16(), reason="no bfloat16 products here")
KINDS = [
    torch.float16,
    torch.float32,
    pytest.param(torch.int8, marks=needs_int8),
    pytest.param(torch.bfloat16, marks=needs_bfloat16),
]
SIZES = st.tuples(st.integers(1, 2 * MOST + 3), st.integers(1, 70), st.integers(1, 90))


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def numbers(*shape: int, seed: int) -> torch.Tensor:
    """What float16 can hold."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).half().float()


@pytest.mark.parametrize("dtype", KINDS[:2])
@settings(max_examples=60)
@given(sizes=SIZES, biased=st.booleans(), seed=st.integers(0, 99))
def test_they_are_the_product(
    dtype: torch.dtype, sizes: tuple[int, int, int], biased: bool, seed: int
) -> None:
    rows, depth, outs = sizes
    x, weight = numbers(rows, depth, seed=seed), numbers(outs, depth, seed=seed + 1)
    bias = numbers(outs, seed=seed + 2) if biased else None
    wanted = torch.nn.functional.linear(x, weight, bias)
    torch.testing.assert_close(Panels(weight, bias, dtype)(x), wanted, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("dtype", KINDS)
def test_a_row_is_computed_as_it_would_be_alone(dtype: torch.dtype, threads: int) -> None:
    run = Panels(numbers(200, 65, seed=1), numbers(200, seed=2), dtype)
    x = numbers(2 * MOST + 1, 65, seed=3) * torch.logspace(-3, 3, 2 * MOST + 1)[:, None]
    many = run(x)
    assert all(torch.equal(run(x[i : i + 1])[0], many[i]) for i in range(len(x)))
    torch.set_num_threads(threads % 2 + 1)
    assert torch.equal(run(x), many)


@needs_int8
@settings(max_examples=40)
@given(sizes=SIZES, biased=st.booleans(), seed=st.integers(0, 99))
def test_bytes_round_rows_and_weights_once(
    sizes: tuple[int, int, int], biased: bool, seed: int
) -> None:
    rows, depth, outs = sizes
    x, weight = numbers(rows, depth, seed=seed), numbers(outs, depth, seed=seed + 1)
    bias = numbers(outs, seed=seed + 2) if biased else None

    def rounded(matrix: torch.Tensor, levels: int) -> torch.Tensor:
        scale = matrix.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / levels
        return scale * torch.floor(matrix / scale + 0.5)

    wanted = torch.nn.functional.linear(rounded(x, 127), rounded(weight, LEVELS), bias)
    found = Panels(weight, bias, torch.int8)(x)
    # Halfway cases may be rounded either way: a level, of one number in a row.
    level = float(x.abs().max() * weight.abs().max()) / LEVELS
    torch.testing.assert_close(found, wanted, atol=2 * level + 1e-4, rtol=1e-4)


@needs_bfloat16
@settings(max_examples=40)
@given(sizes=SIZES, biased=st.booleans(), seed=st.integers(0, 99))
def test_bfloat16_rounds_rows_and_weights_and_nothing_else(
    sizes: tuple[int, int, int], biased: bool, seed: int
) -> None:
    rows, depth, outs = sizes
    x, weight = numbers(rows, depth, seed=seed), numbers(outs, depth, seed=seed + 1)
    bias = numbers(outs, seed=seed + 2) if biased else None
    wanted = torch.nn.functional.linear(x.bfloat16().float(), weight.bfloat16().float(), bias)
    found = Panels(weight, bias, torch.bfloat16)(x)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-5)


@needs_int8
@pytest.mark.parametrize("sign", [1, -1])
def test_bytes_at_their_largest_do_not_overflow(sign: int) -> None:
    x, weight = torch.ones(2, 1536), sign * torch.ones(40, 1536)
    x[1, ::2] = -1
    found = Panels(weight, None, torch.int8)(x)
    assert found.tolist() == [[sign * 1536.0] * 40, [0.0] * 40]


@needs_int8
def test_rows_of_zeros_have_a_scale() -> None:
    run = Panels(numbers(40, 8, seed=1), numbers(40, seed=2), torch.int8)
    assert torch.equal(run(torch.zeros(2, 8))[1], numbers(40, seed=2))


def test_rows_that_are_no_whole_memory() -> None:
    run = Panels(numbers(40, 8, seed=1), None, torch.float32)
    wide = numbers(3, 20, seed=2)
    assert torch.equal(run(wide[:, 4:12]), run(wide[:, 4:12].clone()))
    assert run(wide[:0, 4:12]).shape == (0, 40)


def test_dimensions_before_the_last_stay() -> None:
    run = Panels(numbers(40, 8, seed=1), None, torch.float32)
    x = numbers(2, 3, 8, seed=2)
    assert torch.equal(run(x), run(x.view(6, 8)).view(2, 3, 40))


def test_a_copy_outlives_the_original() -> None:
    run = Panels(numbers(40, 8, seed=1), numbers(40, seed=3), torch.float32)
    x = numbers(3, 8, seed=2)
    wanted, other = run(x), copy.deepcopy(run)
    run.weights[:] = 0
    run.table[:] = 0
    assert torch.equal(other(x), wanted)


@pytest.mark.parametrize(
    ("asked", "dtype"), [("multiplies_int8", torch.int8), ("multiplies_bfloat16", torch.bfloat16)]
)
def test_rounded_products_need_an_instruction(
    monkeypatch: pytest.MonkeyPatch, asked: str, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(cpu, asked, lambda: False)
    with pytest.raises(ValueError, match=str(dtype)):
        Panels(numbers(40, 8, seed=1), None, dtype)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_has_its_own() -> None:
    memory = room(3)
    memory[:] = 1
    child = os.fork()
    if not child:
        memory[:] = 2
        os._exit(0)
    os.waitpid(child, 0)
    assert memory.tolist() == [1, 1, 1]
    assert memory.ctypes.data % 4096 == 0
    assert room(2, 0).shape == (2, 0)


def test_the_weights_are_kept_once() -> None:
    run = Panels(numbers(64, 32, seed=1), None, torch.float16)
    assert run.weights.nbytes == 64 * 32 * 2

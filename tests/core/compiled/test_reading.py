"""What the target made of a tree, read in blocks and by any number of threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dartree_core import compiled as package
from dartree_core.compiled.arrays import Array

if not package.available():
    pytest.skip("nothing can be compiled here", allow_module_level=True)

from dartree_core.compiled import reading

BLOCK = reading._BLOCK
Found = tuple[Array, Array]


def readers() -> list[tuple[Callable[..., Any], int]]:
    """Everyone who reads, and by how many threads."""
    found: list[tuple[Callable[..., Any], int]] = [(reading.read_targets, 1)]
    if package.shares():
        from dartree_core.compiled import shared_reading

        found += [(shared_reading.read_targets, threads) for threads in (1, 2, 3)]
    return found


def case(seed: int, rows: int, words: int) -> tuple[Array, Array, Array]:
    """Logits with ties, parents and tokens."""
    generator = np.random.default_rng(seed)
    logits = (6 * generator.standard_normal((rows, words))).astype(np.float32)
    logits[:, :: 1 + words // 3] = logits[0, 0]
    parent = np.array([-1] + [int(generator.integers(i)) for i in range(1, rows)])
    return logits, parent, generator.integers(words, size=rows)


def read(reader: tuple[Callable[..., Any], int], *given: Array) -> Found:
    """By one of `readers`."""
    function, threads = reader
    logp, rank = np.empty(len(given[1]), np.float32), np.empty(len(given[1]), np.int64)
    function(*given, logp, rank, threads)
    return logp, rank


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    rows=st.integers(1, 9),
    words=st.one_of(
        st.integers(1, 300), st.integers(BLOCK - 1, BLOCK + 1), st.integers(1, 3 * BLOCK)
    ),
)
def test_log_probability_and_rank(seed: int, rows: int, words: int) -> None:
    logits, parent, token = case(seed, rows, words)
    exact = torch.from_numpy(logits).double().log_softmax(-1).numpy()
    for reader in readers():
        logp, rank = read(reader, logits, parent, token)
        assert (logp[0], rank[0]) == (0, 0)
        for i in range(1, rows):
            row, word = parent[i], token[i]
            assert logp[i] == pytest.approx(exact[row, word], abs=1e-4)
            assert rank[i] == 1 + (logits[row] > logits[row, word]).sum()  # ties share the better


@pytest.mark.parametrize("words", [40, 5 * BLOCK + 3])
def test_whoever_reads_finds_the_same_numbers(words: int) -> None:
    given = case(3, 12, words)
    first, *others = [read(reader, *given) for reader in readers()]
    for other in others:
        for ours, theirs in zip(first, other, strict=True):
            assert ours.tobytes() == theirs.tobytes()


def test_forbidden_tokens() -> None:
    """Minus infinity over a whole block, and for a token that a tree proposed."""
    logits = np.full((2, 2 * BLOCK), -np.inf, np.float32)
    logits[0, BLOCK + 5], logits[0, BLOCK + 6] = 1.0, 1.0
    parent = np.array([-1, 0])
    for reader in readers():
        logp, rank = read(reader, logits, parent, np.array([0, BLOCK + 5]))
        assert (logp[1], rank[1]) == (pytest.approx(np.log(0.5), abs=1e-6), 1)
        logp, rank = read(reader, logits, parent, np.array([0, 7]))
        assert (logp[1], rank[1]) == (-np.inf, 3)

"""Drafters that are always wrong or always right change how fast, never what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from dartree_core.config import DecodeConfig, SamplingConfig, TreeConfig
from dartree_core.draft import Supertree, growing
from dartree_core.draft.builders import BUILDERS
from dartree_core.engine import Decoder
from dartree_core.models import Target
from tests.core import tiny

LENGTH = 31
SLOTS = 5
TREE = TreeConfig(budget=16, width=6, candidates=8, expansion_k=8)
SAMPLING = {"greedy": SamplingConfig(), "sampled": SamplingConfig(temperature=0.8, seed=3)}


@contextmanager
def counted_passes() -> Any:
    """Rows of every target pass, in order."""
    rows: list[int] = []
    original = Target.forward

    def forward(self: Target, tokens: Tensor, *args: Any, **kwargs: Any) -> Any:
        rows.append(len(tokens))
        return original(self, tokens, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Target, "forward", forward)
        yield rows


def run(
    method: Any,
    sampling: str,
    opinion: Callable[[Sequence[int]], Callable[[Tensor, int], Tensor]],
    **changes: Any,
) -> tuple[list[Any], list[int]]:
    config = DecodeConfig(
        method=method, tree=TREE, sampling=SAMPLING[sampling], max_new_tokens=LENGTH
    )
    decoder = tiny.knowing("llama", config, opinion, **changes)
    with counted_passes() as rows:
        found = tiny.events(decoder, tiny.PROMPT, config)
    assert tiny.finish(found).token_ids == tiny.plain(decoder, tiny.PROMPT, config).token_ids
    return found, rows


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("method", tiny.DRAFTING)
def test_always_wrong(method: Any, sampling: str) -> None:
    """The first draft token is verified like any other, so nothing is ever accepted."""
    found, rows = run(method, sampling, tiny.always_wrong)
    metrics = tiny.finish(found).metrics
    assert metrics["num_accepted_draft_tokens"] == 0
    assert metrics["mean_acceptance_length"] == 1
    assert len(rows) == LENGTH, "a pass emits exactly one token"
    for e in tiny.rounds(found):
        assert list(e.accepted) == [0]
        assert list(e.provenance) == ["bonus"]
        assert set(e.tree.state) <= {"hit", "walked_past", "unreached", "pruned"}
        assert e.tree.state.count("hit") == 1


@pytest.mark.parametrize("shift", [False, True], ids=["row-dropped", "shifted"])
@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("method", tiny.DRAFTING)
def test_always_right(method: Any, sampling: str, shift: bool) -> None:
    """Every pass emits a whole block and the bonus; the last one what is left."""
    found, rows = run(method, sampling, tiny.always_right, shift_label=shift)
    slots = SLOTS + shift
    emitted = [len(e.tokens) for e in tiny.rounds(found)]
    full, rest = divmod(LENGTH - 1, slots + 1)
    assert emitted == [slots + 1] * full + [rest] * (rest > 0)
    assert len(rows) == 1 + len(emitted)
    for e in tiny.rounds(found):
        assert len(e.accepted) == e.tree.height + 1
        assert list(e.provenance) == ["draft"] * (len(e.tokens) - 1) + ["bonus"]


@pytest.mark.parametrize("method", tiny.DRAFTING)
@pytest.mark.parametrize("right", range(SLOTS))
def test_right_up_to_some_depth(right: int, method: Any) -> None:
    """Right for `right` slots, wrong behind: exactly that many are accepted."""

    def opinion(sequence: Sequence[int]) -> Callable[[Tensor, int], Tensor]:
        yes, no = tiny.always_right(sequence), tiny.always_wrong(sequence)

        def mixed(logits: Tensor, start: int) -> Tensor:
            return torch.cat((yes(logits, start)[:right], no(logits, start)[right:]))

        return mixed

    found, _ = run(method, "greedy", opinion)
    for e in tiny.rounds(found)[:-1]:
        assert len(e.tokens) == right + 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")], ids=str)
@pytest.mark.parametrize("share", [0.3, 1.0])
@pytest.mark.parametrize("method", tiny.DRAFTING)
def test_logits_that_are_no_numbers(method: Any, share: float, value: float) -> None:
    """Half-precision drafters can overflow; the answer must not care."""

    def opinion(sequence: Sequence[int]) -> Callable[[Tensor, int], Tensor]:
        def broken(logits: Tensor, start: int) -> Tensor:
            generator = torch.Generator().manual_seed(start)
            where = torch.rand(logits.shape, generator=generator) < share
            return tiny.vaguely_right(sequence)(logits, start).masked_fill(where, value)

        return broken

    found, _ = run(method, "greedy", opinion)
    for e in tiny.rounds(found):
        assert not list(e.tree.problems())


@pytest.mark.parametrize("method", ["dartree", "dartree-fixed"])
def test_a_head_that_is_no_number_on_some_paths(method: Any) -> None:
    """Only some children of a parent are NaN: they must not outlive it in the pruning."""
    config = DecodeConfig(method=method, tree=TREE, max_new_tokens=LENGTH)
    target = tiny.target("llama")
    draft = tiny.drafter(target)
    original = draft.head.correct

    def correct(shared: Tensor, states: Tensor, candidates: Tensor | None) -> Tensor:
        out = original(shared, states, candidates)
        out[::2] = float("nan")
        return out

    draft.head.correct = correct  # type: ignore[method-assign]
    found = tiny.events(Decoder(target, draft), tiny.PROMPT, config)
    assert (
        tiny.finish(found).token_ids
        == tiny.plain(tiny.family("llama"), tiny.PROMPT, config).token_ids
    )
    for e in tiny.rounds(found):
        assert not list(e.tree.problems())


def test_a_builder_that_proposes_only_nonsense(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wide, bushy, repetitive across branches: any well-formed tree is verified exactly."""

    def nonsense(block: Any, head: Any, root: Tensor, *rest: Any) -> Any:
        generator = torch.Generator().manual_seed(int(root))
        nodes = 40
        parent, depth, token = [-1], [0], [int(root)]
        seen = [set[int]() for _ in range(nodes)]
        for i in range(1, nodes):
            open_to = [p for p in range(i) if len(seen[p]) < tiny.FEW]
            parent.append(open_to[int(torch.randint(0, len(open_to), (1,), generator=generator))])
            depth.append(depth[parent[i]] + 1)
            free = [t for t in range(tiny.FEW) if t not in seen[parent[i]]]
            token.append(free[int(torch.randint(0, len(free), (1,), generator=generator))])
            seen[parent[i]].add(token[-1])
        zeros = torch.zeros(nodes)
        ranks = torch.zeros(nodes, dtype=torch.int64)
        yield from ()
        return Supertree(
            token=torch.tensor(token),
            parent=torch.tensor(parent),
            depth=torch.tensor(depth),
            draft_logp=zeros,
            head_logp=zeros,
            path_logp=zeros,
            draft_rank=ranks,
            head_rank=ranks,
            kept=torch.arange(nodes),
        )

    monkeypatch.setattr(growing, "BUILDERS", {**BUILDERS, "dartree": nonsense})
    decoder, prompt = tiny.enumerable(), [3, 7, 1]
    for sampling in SAMPLING.values():
        config = DecodeConfig(sampling=sampling, max_new_tokens=LENGTH)
        result = decoder.generate(prompt, config)
        assert result.token_ids == tiny.plain(decoder, prompt, config).token_ids
        assert result.metrics["num_accepted_draft_tokens"] > 0

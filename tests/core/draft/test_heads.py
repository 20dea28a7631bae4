"""Correction heads: what they compute, and that a state grown step by step is the path's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dartree_core.draft.heads import CorrectionHead, make_head
from dartree_core.draft.heads.base import Shapes
from dartree_core.draft.spec import DraftSpec
from tests.core import tiny

SLOTS = 5
NO_DOMINO: dict[str, Any] = {"emb_dim": None, "gru_hidden_dim": None}
DSPARK: dict[str, Any] = {**NO_DOMINO, "projector_type": "dspark", "markov_rank": 6}
BIASES: Shapes = {
    "embed_proj.0.bias": (8,),
    "embed_proj.2.bias": (tiny.VOCAB,),
    "prefix_gru.bias_ih_l0": (36,),
    "prefix_gru.bias_hh_l0": (36,),
}
HEADS: dict[str, tuple[dict[str, Any], Shapes | None]] = {
    "none": ({**NO_DOMINO, "projector_type": None}, None),
    "domino": ({}, None),
    "domino-biased": ({}, BIASES),
    "vanilla": ({**DSPARK, "markov_head_type": "vanilla"}, None),
    "gated": ({**DSPARK, "markov_head_type": "gated"}, None),
    "rnn": ({**DSPARK, "markov_head_type": "rnn"}, None),
    "without-confidence": ({**DSPARK, "enable_confidence_head": False}, None),
    "confidence-of-slots": ({**DSPARK, "confidence_head_with_markov": False}, None),
    "selector": (
        {**NO_DOMINO, "projector_type": None, "selector_rank": 5, "selector_top_k": 7},
        None,
    ),
}


def head_of(name: str, seed: int = 0, **changes: Any) -> CorrectionHead:
    fields, shapes = HEADS[name]
    config = tiny.draft_config(tiny.target("llama"), **fields | changes)
    head = make_head(DraftSpec.from_config(config), shapes)
    generator = torch.Generator().manual_seed(seed)
    for p in head.parameters():
        p.data = 0.5 * torch.randn(p.shape, generator=generator)
    return head.requires_grad_(False)


def hidden_of(seed: int = 1) -> Tensor:
    return torch.randn(SLOTS, tiny.HIDDEN, generator=torch.Generator().manual_seed(seed))


def embed(tokens: Tensor) -> Tensor:
    return tiny.target("llama").embed(tokens)


def states_along(head: CorrectionHead, shared: Tensor, path: list[int]) -> Tensor:
    """The state after a root and the tokens that follow it, from scratch."""
    tokens = torch.tensor(path)
    state = head.root_state(tokens[:1], embed(tokens[:1]))
    for i in range(1, len(path)):
        token = tokens[i : i + 1]
        state = head.advance(state, token, embed(token), shared[i - 1])
    return state


TOKENS = st.integers(0, tiny.VOCAB - 1)


@st.composite
def frontiers(draw: st.DrawFn) -> list[list[tuple[int, int]]]:
    """Levels of a tree: per node the row of its parent in the level above, and its token."""
    levels, above = [], 1
    for _ in range(draw(st.integers(1, SLOTS - 1))):
        node = st.tuples(st.integers(0, above - 1), TOKENS)
        levels.append(draw(st.lists(node, min_size=1, max_size=5)))
        above = len(levels[-1])
    return levels


@pytest.mark.parametrize("name", HEADS)
@settings(max_examples=25)
@given(TOKENS, frontiers())
def test_states_grown_in_batches_are_those_of_their_paths(
    name: str, root: int, levels: list[list[tuple[int, int]]]
) -> None:
    head, hidden = head_of(name), hidden_of()
    shared = head.prepare(hidden)
    paths = [[root]]
    states = head.root_state(torch.tensor([root]), embed(torch.tensor([root])))
    for slot, level in enumerate(levels):
        rows, tokens = (torch.tensor(column) for column in zip(*level, strict=True))
        states = head.follow(states[rows], tokens, embed, shared[slot])
        paths = [[*paths[row], token] for row, token in level]
        alone = torch.cat([states_along(head, shared, path) for path in paths])
        torch.testing.assert_close(states, alone)
        corrections = head.correct(shared[slot + 1], states, None)
        for i in range(len(paths)):
            single = head.correct(shared[slot + 1], alone[i : i + 1], None)[0]
            torch.testing.assert_close(corrections[i], single)


@pytest.mark.parametrize("name", HEADS)
def test_candidates_are_columns_of_the_whole(name: str) -> None:
    head = head_of(name)
    shared = head.prepare(hidden_of())
    states = torch.cat([states_along(head, shared, [3, t]) for t in (9, 1, 14)])
    whole = head.correct(shared[1], states, None)
    rows = torch.tensor([5, 0, 11])
    some = head.correct(shared[1], states, rows)
    torch.testing.assert_close(some, whole if whole.shape[1] == 1 else whole[:, rows])


@pytest.mark.parametrize("name", ["domino", "vanilla", "gated", "rnn", "selector"])
def test_the_path_matters(name: str) -> None:
    head = head_of(name)
    shared = head.prepare(hidden_of())
    one, other = (head.correct(shared[1], states_along(head, shared, [3, t]), None) for t in (9, 1))
    assert not torch.allclose(one, other, atol=0.1)


@pytest.mark.parametrize("name", ["domino", "rnn"])
def test_recurrent_heads_remember_more_than_the_last_token(name: str) -> None:
    head = head_of(name)
    shared = head.prepare(hidden_of())
    one, other = (
        head.correct(shared[2], states_along(head, shared, [3, t, 7]), None) for t in (9, 1)
    )
    assert not torch.allclose(one, other, atol=1e-3)


def markov_by_the_book(head: Any, variant: str, path: list[int], hidden: Tensor) -> Tensor:
    """Biases at every slot of a path, from the parameters as checkpoints store them."""
    p = {n.removeprefix("markov_head."): t for n, t in head.state_dict().items()}
    e = p["markov_w1.weight"][torch.tensor(path)]
    h, rank = hidden[: len(path)], e.shape[1]
    if variant == "vanilla":
        latent = e
    elif variant == "gated":
        both = torch.cat((h, e), dim=-1)
        latent = torch.sigmoid(F.linear(both, p["gate_proj.weight"], p["gate_proj.bias"])) * e
    else:
        state, rows = torch.zeros(rank), []
        for k in range(len(path)):
            joined = torch.cat((state, e[k], h[k]))
            joint = F.linear(joined, p["joint_proj.weight"], p["joint_proj.bias"])
            gate, candidate, output = joint.chunk(3)
            state = gate.sigmoid() * state + (1 - gate.sigmoid()) * candidate.tanh()
            rows.append(output.tanh())
        latent = torch.stack(rows)
    return latent @ p["markov_w2.weight"].T


@pytest.mark.parametrize("variant", ["vanilla", "gated", "rnn"])
def test_markov_biases_are_the_published_ones(variant: str) -> None:
    head, hidden = head_of(variant), hidden_of()
    path = [3, 9, 1, 14, 22]
    expected = markov_by_the_book(head, variant, path, hidden)
    shared = head.prepare(hidden)
    for slot in range(SLOTS):
        state = states_along(head, shared, path[: slot + 1])
        torch.testing.assert_close(head.correct(shared[slot], state, None)[0], expected[slot])


@pytest.mark.parametrize("name", ["vanilla", "gated", "rnn", "confidence-of-slots"])
def test_confidence_reads_the_slot_and_the_token_before_it(name: str) -> None:
    head: Any = head_of(name)
    hidden, path = hidden_of(), [3, 9, 1]
    tensors = head.state_dict()
    weight, bias = tensors["confidence_head.proj.weight"], tensors["confidence_head.proj.bias"]
    embedded = tensors["markov_head.markov_w1.weight"][path[-1]]
    features = torch.cat((hidden[2], embedded))[: weight.shape[1]]
    expected = torch.sigmoid(weight @ features + bias)
    shared = head.prepare(hidden)
    states = states_along(head, shared, path).expand(4, -1)
    found = head.confidence(shared[2], states)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected.expand(4))


@pytest.mark.parametrize("name", ["none", "domino", "without-confidence", "selector"])
def test_heads_without_confidence_say_so(name: str) -> None:
    head = head_of(name)
    shared = head.prepare(hidden_of())
    assert head.confidence(shared[0], states_along(head, shared, [3])) is None


def test_the_selector_is_the_published_one() -> None:
    head, hidden = head_of("selector"), hidden_of()
    tensors = head.state_dict()
    before, after, projection = (
        tensors[f"candidate_selector.{name}.weight"]
        for name in ("predecessor_codebook", "successor_codebook", "hidden_projection")
    )
    shared = head.prepare(hidden)
    found = head.correct(shared[2], states_along(head, shared, [3, 9, 1]), None)[0]
    torch.testing.assert_close(found, after @ (before[1] * (projection @ hidden[2])))
    assert head.max_candidates == 7


@pytest.mark.parametrize("name", ["vanilla", "gated", "rnn", "selector"])
def test_tokens_the_drafter_does_not_know_leave_no_trace(name: str) -> None:
    """A padded target may emit ids beyond the head's tables."""
    head = head_of(name)
    shared = head.prepare(hidden_of())
    beyond = torch.tensor([tiny.VOCAB, tiny.VOCAB + 999])
    states = head.root_state(beyond, torch.zeros(2, tiny.HIDDEN))
    assert not states.any()
    if name != "rnn":  # a slot alone may move a recurrent state
        assert not head.correct(shared[0], states, None).any()


def test_a_recurrent_markov_head_needs_its_slots() -> None:
    head = head_of("rnn")
    state = head.root_state(torch.tensor([3]), embed(torch.tensor([3])))
    with pytest.raises(ValueError, match="give `shared`"):
        head.advance(state, torch.tensor([4]), embed(torch.tensor([4])))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", HEADS)
def test_half_precision_stays_close(name: str, dtype: torch.dtype) -> None:
    exact, half = head_of(name), head_of(name).to(dtype)
    hidden, path = hidden_of(), torch.tensor([3])
    states = [
        h.advance(
            h.root_state(path, embed(path).to(x.dtype)),
            path,
            embed(path).to(x.dtype),
            h.prepare(x)[0],
        )
        for h, x in ((exact, hidden), (half, hidden.to(dtype)))
    ]
    ours = half.correct(half.prepare(hidden.to(dtype))[1], states[1], None)
    assert ours.dtype == dtype
    expected = exact.correct(exact.prepare(hidden)[1], states[0], None)
    torch.testing.assert_close(ours.float(), expected, atol=0.3, rtol=0.1)

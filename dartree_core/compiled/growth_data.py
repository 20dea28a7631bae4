"""What growing a tree works on."""

# Functions are compiled by Numba, not run by Python: types are Numba's.
# mypy: ignore-errors

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dartree_core.compiled.arrays import Array

LEVELS, ABOVE, FRONTIER, NODES, FILLED = range(5)
"""Where a tree's state is: levels grown, the frontier's first node and how many of it get children,
nodes in all, best keys so far."""


class Head(NamedTuple):
    """A Domino head's weights, float32 and contiguous; G the state's width, E the embedding's.

    Attributes:
        kind: Of the weights in panels, see `tiles`; not one of those that round rows.
        inputs: `[Vd, 3G]`, products of all draft tokens with the GRU's input weights.
        of_state, of_state_table: Addresses of what a state is multiplied with, `[3G + E, G]` in
            panels, see `tiles`: the GRU's weights, and the state's half of the correction's
            first layer.
        of_nothing: `[3G]`, the GRU's product with a state of zeros, its bias.
        of_slot, of_slot_table: Addresses of the slot's half of that layer, `[E, H]` in panels.
        last, last_bias: `[Vd, E]` and `[Vd]`, the correction's last layer.
        ids: int64 `[Vd]`, target ids of the drafter's rows.
        prefix_len: First slots that stay uncorrected.
    """

    kind: int
    inputs: Array
    of_state: int
    of_state_table: int
    of_nothing: Array
    of_slot: int
    of_slot_table: int
    last: Array
    last_bias: Array
    ids: Array
    prefix_len: int


class Limits(NamedTuple):
    """How large a tree may get.

    Attributes:
        depths: Levels.
        size: Candidates of a slot.
        branch: Children of a node.
        width: Nodes of a level; of a tree, where `spread`.
        spread: Spend `width` nodes evenly over the levels, and prune nothing.
        keep: Nodes of a tree that are to be verified, the best by key.
        enough: Stop once so many nodes are better than anything deeper could be; 0 for never.
        bonus: Added per depth to path scores, which makes the keys.
    """

    depths: int
    size: int
    branch: int
    width: int
    spread: bool
    keep: int
    enough: int
    bonus: np.float32


class Tree(NamedTuple):
    """A supertree's columns, see `dartree_core.draft.supertree`; entry 0 is the root.
    `candidates` is int64 `[depths, size]`."""

    token: Array
    parent: Array
    depth: Array
    draft_rank: Array
    head_rank: Array
    draft_logp: Array
    head_logp: Array
    path_logp: Array
    candidates: Array


INTEGERS, FLOATS = Tree._fields[:5], Tree._fields[5:8]
"""Columns in the order in which `grow` returns them."""


class Work(NamedTuple):
    """What threads share while a tree grows; rows of states and scores are the frontier's.

    Attributes:
        rows: int64 `[depths, size]`, a slot's candidates, the best first.
        base: `[depths, size]`, their logits.
        norm: `[depths]`, logs of their exponentials' sums, or of all tokens' where uncorrected.
        last, last_bias: `[size, E]` and `[size]`, of a slot's candidates.
        shared: `[depths, >= E]`, of every slot.
        states, fresh: `[W, G]`, of this level and the next, in turns.
        carried: `[W, >= 3G + E]`, their products.
        mixed: `[W, E]`, what the last layer reads; `W` in whole groups.
        scores, total: `[W, size]`, log-probabilities, and with the paths'.
        used: bool `[W, size]`.
        picked, chosen: int64 `[width]`, a level's parents and candidates.
        values: `[width]`, its path scores.
        best: `[enough]`, the best keys so far.
        state: int64, see `LEVELS`.
        place: Where threads meet.
    """

    rows: Array
    base: Array
    norm: Array
    last: Array
    last_bias: Array
    shared: Array
    states: Array
    fresh: Array
    carried: Array
    mixed: Array
    scores: Array
    total: Array
    used: Array
    picked: Array
    chosen: Array
    values: Array
    best: Array
    state: Array
    place: Array


NO_HEAD = Head(
    kind=0,
    inputs=np.zeros((1, 1), np.float32),
    of_state=0,
    of_state_table=0,
    of_nothing=np.zeros(1, np.float32),
    of_slot=0,
    of_slot_table=0,
    last=np.zeros((1, 1), np.float32),
    last_bias=np.zeros(1, np.float32),
    ids=np.zeros(1, np.int64),
    prefix_len=0,
)
NO_LIMITS = Limits(0, 0, 0, 0, False, 0, 0, np.float32(0))
"""Their types, for compiled code."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from dartree_core.draft.spec import DraftSpec
from dartree_core.train.blocks import GROUP, draw_anchors, make_blocks
from dartree_core.train.corpus import Sample
from dartree_core.train.stream import keyed_generator

SAMPLE = Sample(np.arange(100, 120), 8, 0.0, "")


@pytest.fixture
def spec() -> DraftSpec:
    return DraftSpec.from_config(
        {
            "hidden_size": 8,
            "intermediate_size": 8,
            "num_hidden_layers": 1,
            "num_attention_heads": 1,
            "vocab_size": 200,
            "block_size": 4,
            "mask_token_id": 0,
            "target_layer_ids": [0],
        }
    )


def test_anchors_are_distinct_and_inside_the_answer() -> None:
    anchors = draw_anchors(SAMPLE, 50, keyed_generator(0)).tolist()
    assert anchors == list(range(8, 19))
    some = draw_anchors(SAMPLE, 4, keyed_generator(1)).tolist()
    assert len(set(some)) == 4
    assert some == sorted(some)


@pytest.mark.parametrize("shift", [False, True])
def test_slots_name_the_tokens_that_follow(spec: DraftSpec, shift: bool) -> None:
    spec = dataclasses.replace(spec, shift_label=shift)
    blocks = make_blocks(SAMPLE, torch.tensor([8, 17]), spec)
    slots = spec.num_slots()
    assert slots == (4 if shift else 3)
    assert blocks.tokens[0].tolist() == list(range(108, 108 + slots + 1))
    assert blocks.valid[0].all()
    # Two tokens follow the anchor at 17.
    assert blocks.valid[1].tolist() == [True, True, *[False] * (slots - 2)]
    assert not blocks.valid[2:].any()
    assert len(blocks.anchors) == GROUP


def test_rows_see_their_context_and_their_own_block_only(spec: DraftSpec) -> None:
    blocks = make_blocks(SAMPLE, torch.tensor([8, 11]), spec)
    mask = blocks.masks[0]
    assert mask is not None
    length, rows = len(SAMPLE.tokens), spec.block_size
    for row in range(2 * rows):
        anchor = (8, 11)[row // rows]
        seen = mask[0, row].nonzero()[:, 0].tolist()
        own = [length + rows * (row // rows) + i for i in range(rows)]
        assert seen == [*range(anchor), *own]
    assert blocks.positions[0, : 2 * rows].tolist() == [8, 9, 10, 11, 11, 12, 13, 14]


def test_windows_count_positions(spec: DraftSpec) -> None:
    spec = dataclasses.replace(spec, windows=(3,))
    mask = make_blocks(SAMPLE, torch.tensor([10]), spec).masks[0]
    assert mask is not None
    seen = mask[0, 1].nonzero()[:, 0].tolist()
    # The row at position 11 sees 9 and the block's 10 to 13.
    assert seen == [9, 20, 21, 22, 23]

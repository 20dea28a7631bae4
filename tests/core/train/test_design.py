"""The drafter's shapes and its mask token, read off targets of several kinds."""

from __future__ import annotations

import copy

import numpy as np
import torch

from dartree_core.draft.spec import DraftSpec
from dartree_core.train.corpus import Corpus, Sample
from dartree_core.train.design import drafter_config, pick_mask_token
from dartree_core.train.recipe import ShapeRecipe
from tests.core import families


def test_a_target_without_an_mlp_width_has_the_usual_one() -> None:
    target = families.target("gpt2")
    spec = DraftSpec.from_config(drafter_config(ShapeRecipe(draft_vocab=0), target, 3))
    assert spec.intermediate_size == 4 * target.hidden_size


def test_a_mask_has_an_embedding() -> None:
    target = copy.deepcopy(families.target("llama"))
    last = target.vocab_size - 1
    corpus = Corpus((Sample(np.arange(4), 2, 0.0, ""),))
    assert pick_mask_token(corpus, target, [2, 7]) == 7
    assert pick_mask_token(corpus, target, []) == last
    with torch.no_grad():
        target.embedding.weight[[7, last]] = 0
    assert pick_mask_token(corpus, target, [2, 7]) == last - 1

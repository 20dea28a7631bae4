"""The teacher of soft labels is the target as it samples, whatever its logits go through."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf
from torch import nn

from dartree_core.draft.vocabulary import DraftVocabulary
from dartree_core.models import Target
from dartree_core.train.corpus import Corpus, Sample
from dartree_core.train.features import FeatureSource
from dartree_core.train.model import Tables
from tests.core import families, tiny

IDS = torch.tensor([3, 9, 20, 41])


def made(name: str, **changes: Any) -> Target:
    torch.manual_seed(2)
    config = getattr(hf, f"{name}Config")(**tiny._SHAPE | changes)
    return tiny.wrap(getattr(hf, f"{name}ForCausalLM")(config))


def biased() -> Target:
    target = made("Llama")
    target.output.bias = nn.Parameter(torch.randn(target.vocab_size), requires_grad=False)
    return target


TARGETS = {
    "plain": lambda: families.target("llama"),
    "bounded": lambda: families.target("gemma2"),
    "divided": lambda: made("Granite", logits_scaling=4.0),
    "multiplied": lambda: made("Cohere", logit_scale=0.25),
    "multiplied-by-the-other-name": lambda: made("HyperCLOVAX", logits_scaling=0.25),
    "biased": biased,
}


@pytest.mark.parametrize("name", TARGETS)
def test_the_teacher_says_what_the_target_does(name: str) -> None:
    target = TARGETS[name]()
    tokens = torch.tensor(tiny.PROMPT)
    source = FeatureSource(
        target, Corpus((Sample(tokens.numpy(), 2, 0.0, ""),)), (0,), torch.float32
    )
    tables = Tables(target, DraftVocabulary(len(IDS), IDS), torch.float32)
    found = tables.teacher(source[0].final.float())
    logits = target.forward(tokens, target.new_cache()).logits[:, IDS]
    torch.testing.assert_close(found, logits.softmax(-1), rtol=0.02, atol=1e-3)

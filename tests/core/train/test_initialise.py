from __future__ import annotations

import pytest
import torch

from dartree_core.train.initialise import input_scales
from tests.core import families


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_embeddings_are_brought_to_unit_size(name: str) -> None:
    target = families.target(name)
    scales = input_scales(torch.randn(4, target.hidden_size), target)
    rows = target.embed(torch.arange(target.vocab_size)) / scales.embedding
    assert rows.std().item() == pytest.approx(1.0)

"""Checkpoints of real quantisation backends, where these are installed (they are optional)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from dartree_core.config import DecodeConfig, TreeConfig
from dartree_core.engine import Decoder
from dartree_core.models import load_target
from tests.core import families, tiny

CONFIG = DecodeConfig(tree=TreeConfig(budget=16), max_new_tokens=16)
WIDE = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32}
"""Backends leave smaller products alone."""


def bitsandbytes(bits: int) -> Any:
    pytest.importorskip("bitsandbytes")
    if bits == 8:
        return hf.BitsAndBytesConfig(load_in_8bit=True)
    return hf.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32
    )


def torchao() -> Any:
    quantization = pytest.importorskip("torchao.quantization")
    return hf.TorchAoConfig(quantization.Int8WeightOnlyConfig())


def saved(config: Any, into: Path) -> Path:
    """A quantised Llama, as its owner would publish it."""
    torch.manual_seed(0)
    plain = families.save(
        hf.LlamaForCausalLM(hf.LlamaConfig(**tiny._SHAPE | WIDE)).eval(), into / "plain"
    )
    model = hf.AutoModelForCausalLM.from_pretrained(
        plain, quantization_config=config, dtype=torch.float32
    )
    return families.save(model, into / "quantised")


@pytest.mark.parametrize(
    ("quantiser", "exact"),
    [(lambda: bitsandbytes(4), True), (lambda: bitsandbytes(8), False), (torchao, True)],
    ids=["bitsandbytes-4bit", "bitsandbytes-8bit", "torchao-int8"],
)
def test_a_published_quantised_model_is_the_reference(
    quantiser: Any, exact: bool, tmp_path: Path
) -> None:
    """Weight-only kernels are exact. LLM.int8 picks outlier columns by the whole batch: told."""
    folder = saved(quantiser(), tmp_path)
    target = load_target(folder, device=torch.device("cpu"), dtype=torch.float32, lean=True)
    assert target.path == "transformers"
    assert (target.notes == ()) == exact
    plain = Decoder(target).generate(tiny.PROMPT, CONFIG.with_changes(method="ar")).token_ids
    for method in tiny.TREES:
        drafter = tiny.headless(target)
        drafter.opinion = tiny.vaguely_right([*tiny.PROMPT, *plain])
        found = Decoder(target, drafter).generate(tiny.PROMPT, CONFIG.with_changes(method=method))
        assert len(found.token_ids) == len(plain)
        assert found.metrics["num_accepted_draft_tokens"] > 0
        if exact:
            assert found.token_ids == plain

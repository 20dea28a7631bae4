"""Models whose trees are not exact are found out by measuring, whatever they are called."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GPTNeoConfig, GPTNeoForCausalLM, MptConfig, MptForCausalLM

from dartree_core.config import DecodeConfig, TreeConfig
from dartree_core.engine import Decoder
from dartree_core.engine.rescore import rescore
from dartree_core.errors import CheckpointError
from dartree_core.models import Target
from dartree_core.models.selfcheck import check_rows, row_errors
from tests.core import families, tiny

CONFIG = DecodeConfig(tree=TreeConfig(budget=16), max_new_tokens=16)


class WeightOnly(nn.Module):
    """4-bit weights, scaled per output row: activations stay what they are."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        scale = linear.weight.detach().abs().amax(dim=1, keepdim=True) / 7
        codes = (linear.weight.detach() / scale).round().to(torch.int8)
        self.weight = nn.Parameter(codes, requires_grad=False)
        self.scale = nn.Parameter(scale, requires_grad=False)
        self.bias = linear.bias
        self.out_features, self.in_features = linear.out_features, linear.in_features

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype) * self.scale.to(x.dtype), self.bias)


class Dynamic(WeightOnly):
    """Activations are rounded, too, with one scale for all rows of the pass."""

    def forward(self, x: Tensor) -> Tensor:
        scale = x.abs().max() / 127
        return super().forward((x / scale).round() * scale)


def quantised(kind: type[WeightOnly], *, head: bool = False) -> Target:
    model: Any = copy.deepcopy(families.target("llama").model)
    for layer in model.model.layers:
        for block in (layer.self_attn, layer.mlp):
            for name, child in list(block.named_children()):
                if isinstance(child, nn.Linear):
                    setattr(block, name, kind(child))
    if head:
        model.set_output_embeddings(kind(model.lm_head))
    return tiny.wrap(model)


@pytest.mark.parametrize("head", [False, True], ids=["plain-head", "quantised-head"])
@pytest.mark.parametrize("method", tiny.DRAFTING)
def test_quantised_weights_are_the_reference(method: Any, head: bool) -> None:
    target = quantised(WeightOnly, head=head)
    assert check_rows(target) == ()
    plain = Decoder(target).generate(tiny.PROMPT, CONFIG.with_changes(method="ar"))
    unquantised = Decoder(families.target("llama")).generate(
        tiny.PROMPT, CONFIG.with_changes(method="ar")
    )
    assert plain.token_ids != unquantised.token_ids
    drafter = tiny.headless(target)
    drafter.opinion = tiny.vaguely_right([*tiny.PROMPT, *plain.token_ids])
    found = Decoder(target, drafter).generate(tiny.PROMPT, CONFIG.with_changes(method=method))
    assert found.token_ids == plain.token_ids
    assert found.metrics["num_accepted_draft_tokens"] > 0


def test_a_quantised_output_table_is_read_through_its_module() -> None:
    target = quantised(WeightOnly, head=True)
    assert target.output.weight.dtype == torch.int8
    assert target.vocab_size == tiny.VOCAB
    rows = torch.randn(3, tiny.HIDDEN)
    torch.testing.assert_close(rows @ target.output_weight.T, target.output(rows))


def test_kernels_that_look_at_the_whole_batch_are_told_of() -> None:
    """Such outputs may differ from plain decoding's, and rescoring finds where."""
    target = quantised(Dynamic)
    assert row_errors(target).chain > 1e-3
    (note,) = check_rows(target)
    assert "depend on how many tokens are in a pass" in note
    target.notes = (note,)
    decoder = Decoder(target, tiny.drafter(target))
    assert note in decoder.notes
    config = CONFIG.with_changes(max_new_tokens=40)
    output = decoder.generate(tiny.PROMPT, config).token_ids
    plain = decoder.generate(tiny.PROMPT, config.with_changes(method="ar")).token_ids
    found = rescore(target, tiny.PROMPT, output, config)
    assert bool(found) == (output != plain)


def mpt() -> Any:
    """ALiBi: keys are penalised by how many rows away they stand."""
    shape = {"d_model": tiny.HIDDEN, "n_heads": 4, "n_layers": 4, "max_seq_len": 64}
    return MptForCausalLM(MptConfig(vocab_size=tiny.VOCAB, initializer_range=0.35, **shape))


def gpt_neo() -> Any:
    """Windows over rows."""
    shape = {"hidden_size": tiny.HIDDEN, "num_heads": 4, "num_layers": 4, "window_size": 5}
    kinds = [[["global", "local"], 2]]
    return GPTNeoForCausalLM(
        GPTNeoConfig(
            vocab_size=tiny.VOCAB,
            attention_types=kinds,
            initializer_range=0.35,
            bos_token_id=None,
            eos_token_id=None,
            **shape,
        )
    )


@pytest.mark.parametrize("build", [mpt, gpt_neo])
def test_distance_by_row_is_refused(build: Any) -> None:
    torch.manual_seed(0)
    target = tiny.wrap(build())
    assert row_errors(target).chain < 1e-4
    with pytest.raises(CheckpointError, match="counts distance by row") as error:
        check_rows(target)
    assert type(target.model).__name__ in error.value.message


def test_a_pass_that_cannot_run_is_refused_with_its_reason() -> None:
    target = tiny.wrap(copy.deepcopy(families.target("llama").model))

    def forward(**_: Any) -> Any:
        raise RuntimeError("no such kernel\nfor this device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target.model, "forward", forward)
        with pytest.raises(CheckpointError, match=r"RuntimeError: no such kernel\)"):
            check_rows(target)


def test_memory_running_out_is_not_the_models_fault() -> None:
    target = tiny.wrap(copy.deepcopy(families.target("llama").model))

    def forward(**_: Any) -> Any:
        raise torch.OutOfMemoryError("out of memory")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target.model, "forward", forward)
        with pytest.raises(torch.OutOfMemoryError):
            check_rows(target)

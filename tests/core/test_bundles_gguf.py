from __future__ import annotations

import io
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from dartree_core.bundles import gguf_model
from dartree_core.bundles.facts import read_config, read_facts
from dartree_core.errors import CheckpointError
from tests.core import tiny_gguf
from tests.core.tiny_gguf import TinyGGUF, write_gguf


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyGGUF:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def folder(tiny: TinyGGUF, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("converted")
    done = gguf_model.convert(tiny.path, out)
    assert done.dtype == "float32"
    assert done.parameters == sum(w.size for w in tiny.weights.values())
    return out


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def test_weights_are_the_dequantised_ones_exactly(tiny: TinyGGUF, folder: Path) -> None:
    stored = load_file(folder / "model.safetensors")
    assert stored.keys() == tiny.weights.keys()  # the tied output layer is not stored twice
    for name, expected in tiny.weights.items():
        np.testing.assert_array_equal(stored[name], expected, err_msg=name)


def test_the_space_a_conversion_takes_is_known_before(tiny: TinyGGUF, folder: Path) -> None:
    written = (folder / "model.safetensors").stat().st_size
    assert 0.9 * written < gguf_model.stored_bytes(tiny.path) < 1.5 * written


@pytest.mark.parametrize(
    "kind",
    [
        *("F16", "BF16", "Q8_0", "Q5_0", "Q5_1", "Q4_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
        *("IQ4_XS", "IQ4_NL"),
    ],
)
def test_every_usual_type_is_read_exactly_and_decoded(kind: str, tmp_path: Path) -> None:
    """The dequantised model is the target: trees say of it what plain decoding says."""
    import torch

    from dartree_core.config import DecodeConfig
    from dartree_core.engine import Decoder
    from dartree_core.models import load_target
    from tests.core import tiny as models

    written = write_gguf(tmp_path / "tiny.gguf", kind=tiny_gguf.Kind[kind], width=256, mlp=256)
    gguf_model.convert(written.path, tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    for name, expected in written.weights.items():
        np.testing.assert_array_equal(stored[name], expected, err_msg=name)
    target = load_target(tmp_path, device=torch.device("cpu"), dtype=torch.float32, lean=True)
    config = DecodeConfig(max_new_tokens=8, ignore_eos=True).with_changes(budget=12)
    plain = Decoder(target).generate(models.PROMPT, config.with_changes(method="ar"))
    changes = {"target_layer_ids": [0, 1], "vocab_size": target.vocab_size}
    draft = models.headless(target, **changes)
    draft.opinion = models.vaguely_right([*models.PROMPT, *plain.token_ids])
    found = Decoder(target, draft).generate(models.PROMPT, config)
    assert found.token_ids == plain.token_ids
    assert found.metrics["num_accepted_draft_tokens"] > 0


def test_a_model_loaded_from_it_computes_what_the_weights_say(tiny: TinyGGUF, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tiny_gguf.tokens()),
        hidden_size=tiny_gguf.HIDDEN,
        intermediate_size=tiny_gguf.MLP,
        num_hidden_layers=tiny_gguf.LAYERS,
        num_attention_heads=tiny_gguf.HEADS,
        num_key_value_heads=tiny_gguf.KV_HEADS,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
    )
    expected = LlamaForCausalLM(config).eval()
    state = {name: torch.from_numpy(w) for name, w in tiny.weights.items()}
    assert expected.load_state_dict(state, strict=False).missing_keys == ["lm_head.weight"]
    expected.tie_weights()
    loaded = AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = torch.arange(40)[None] * 5 % len(tiny_gguf.tokens())
    with torch.inference_mode():
        torch.testing.assert_close(loaded(ids).logits, expected(ids).logits, rtol=0, atol=0)


def test_the_configuration_is_clean(folder: Path) -> None:
    config = read_config(folder)
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["rms_norm_eps"] == 1e-5
    assert config["rope_parameters"]["rope_theta"] == 100000.0
    assert config["max_position_embeddings"] == 512
    assert config["eos_token_id"] == 2
    assert "quantization_config" not in config
    assert "tiny" not in str(config)  # nothing of where it came from


def test_files_can_be_read_by_other_users(folder: Path) -> None:
    assert (folder / "model.safetensors").stat().st_mode & 0o044 == 0o044


def test_facts_of_the_converted_folder(tiny: TinyGGUF, folder: Path) -> None:
    facts = read_facts(folder)
    assert (facts.layers, facts.hidden, facts.heads, facts.kv_heads) == (2, 64, 4, 2)
    assert facts.parameters == sum(w.size for w in tiny.weights.values())
    assert facts.dtypes == ("F32",)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("ab  12", ["ab", "ĠĠ", "1", "2"]),  # blanks before a number stay together
        ("ab\n 12", ["ab", "ĊĠ", "1", "2"]),
        (" ab", ["Ġab"]),
    ],
)
def test_smollm_tokenizers_split_digits_off(tokenizer: Any, text: str, pieces: list[str]) -> None:
    assert tokenizer.tokenize(text) == pieces
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_other_tokenizers_keep_their_own_rule(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    plain = write_gguf(tmp_path / "gpt2.gguf", pre="gpt-2")
    gguf_model.convert(plain.path, tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path).tokenize("ab 12") == ["ab", "Ġ", "12"]


def test_chat_template_and_special_tokens_survive(tokenizer: Any) -> None:
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "ab"}], tokenize=False, add_generation_prompt=True
    )
    assert text == "<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer("<|im_end|>").input_ids == [2]
    assert tokenizer.eos_token_id == 2
    assert tokenizer.model_max_length == 512


def test_it_keeps_quiet_and_reports_steps(tiny: TinyGGUF, tmp_path: Path) -> None:
    heard: list[tuple[str, int, int, str]] = []
    noise = io.StringIO()
    with redirect_stderr(noise):
        gguf_model.convert(tiny.path, tmp_path, lambda *step: heard.append(step), "Tiny")
    assert noise.getvalue() == ""
    assert {(what, total, unit) for what, _, total, unit in heard} == {
        ("dequantising Tiny", 4, "steps")
    }
    assert [done for _, done, _, _ in heard] == [0, 1, 2, 3, 4]


def test_a_cut_file_is_refused(tiny: TinyGGUF, tmp_path: Path) -> None:
    size = tiny.path.stat().st_size
    for keep in (4, 100, 5000, size - 100):
        cut = tmp_path / f"cut{keep}.gguf"
        cut.write_bytes(tiny.path.read_bytes()[:keep])
        with pytest.raises(CheckpointError, match=f"cut{keep}.gguf"):
            gguf_model.convert(cut, tmp_path)


def test_a_file_without_all_tensors_is_refused(tmp_path: Path) -> None:
    partial = write_gguf(tmp_path / "partial.gguf", drop="blk.1.ffn_up.weight")
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        gguf_model.convert(partial.path, tmp_path)


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    foreign = write_gguf(tmp_path / "foreign.gguf", arch="clip")
    with pytest.raises(CheckpointError, match=r"foreign\.gguf cannot be converted"):
        gguf_model.convert(foreign.path, tmp_path)


def test_a_full_disk_is_an_os_error_not_a_checkpoint_error(tmp_path: Path) -> None:
    from safetensors import SafetensorError

    full = SafetensorError("Error while serializing: I/O error: No space left (os error 28)")
    with pytest.raises(OSError, match="No space left") as caught, gguf_model._disk_errors(tmp_path):
        raise full
    assert caught.value.errno == 28

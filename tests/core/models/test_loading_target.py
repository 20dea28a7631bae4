"""Loading a target from a folder: safe, and clear about what is wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dartree_core.errors import CheckpointError, ConfigError
from dartree_core.models import load_target, load_tokenizer
from tests.core import tiny

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny.CHECKPOINTS / "target_tied", tmp_path / "model"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_loads_ready_for_inference(folder: Path, dtype: torch.dtype) -> None:
    target = load_target(folder, device=CPU, dtype=dtype, revision="abc")
    assert (target.label, target.revision, target.dtype) == ("model", "abc", dtype)
    assert not target.model.training
    assert not any(p.requires_grad for p in target.model.parameters())


def test_a_kernel_stored_with_the_model_gives_way(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(config | {"attn_implementation": "flash_attention_2"})
    )
    target = load_target(folder, device=CPU, dtype=torch.float32)
    assert target.model.config._attn_implementation == "sdpa"  # type: ignore[union-attr]


def test_a_folder_without_configuration(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        load_target(tmp_path, device=CPU, dtype=torch.float32)


def test_cut_configuration(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        load_target(folder, device=CPU, dtype=torch.float32)


def test_pickled_weights_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"no \.safetensors") as error:
        load_target(folder, device=CPU, dtype=torch.float32)
    assert "code" in error.value.remedy


def test_damaged_weights(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:1000])
    with pytest.raises(CheckpointError, match="could not be loaded"):
        load_target(folder, device=CPU, dtype=torch.float32)


@pytest.mark.parametrize("lean", [False, True])
def test_missing_weights_are_not_made_up(folder: Path, lean: bool) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    lost = next(name for name in tensors if name.endswith("mlp.up_proj.weight"))
    save_file({k: v for k, v in tensors.items() if k != lost}, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match=lost):
        load_target(folder, device=torch.device("cpu"), dtype=torch.float32, lean=lean)


def test_a_models_own_code_is_not_run(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "evil.Model"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text("raise SystemExit('ran')")
    with pytest.raises(ConfigError, match="its own Python code") as error:
        load_target(folder, device=CPU, dtype=torch.float32)
    assert "--trust-remote-code" in error.value.remedy


OWN_CLASS = """
import transformers


class NAME(transformers.NAME):
    def forward(self, *args, **kwargs):
        out = super().forward(*args, **kwargs)
        out.logits = -out.logits
        return out
"""


def test_a_models_own_class_is_run_as_it_is(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is called: the lean path knows only what transformers' own classes compute."""
    modules = "transformers.dynamic_module_utils.HF_MODULES_CACHE"
    monkeypatch.setattr(modules, str(tmp_path / "modules"))
    config = json.loads((folder / "config.json").read_text())
    name = config["architectures"][0]
    (folder / "own.py").write_text(OWN_CLASS.replace("NAME", name))
    stock = load_target(folder, device=CPU, dtype=torch.float32, lean=True)
    config["auto_map"] = {"AutoModelForCausalLM": f"own.{name}"}
    (folder / "config.json").write_text(json.dumps(config))
    own = load_target(folder, device=CPU, dtype=torch.float32, lean=True, trust_remote_code=True)
    ids = torch.tensor(tiny.PROMPT)
    logits = [target.forward(ids, target.new_cache()).logits for target in (stock, own)]
    torch.testing.assert_close(logits[1], -logits[0], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize(
    "changes", [{"vocab_size": 100}, {"intermediate_size": 8}, {"hidden_size": "wide"}], ids=str
)
def test_a_configuration_that_does_not_fit(
    changes: dict[str, Any], lean: bool, folder: Path
) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(CheckpointError, match="could not be loaded") as error:
        load_target(folder, device=CPU, dtype=torch.float32, lean=lean)
    assert "\n" not in error.value.message


def test_a_configuration_that_is_no_object(folder: Path) -> None:
    (folder / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="not a JSON object"):
        load_target(folder, device=CPU, dtype=torch.float32)


def test_an_unknown_architecture(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "no_such_model"}))
    with pytest.raises(CheckpointError, match="could not be loaded"):
        load_target(folder, device=CPU, dtype=torch.float32)


def test_no_tokenizer_is_no_error_a_broken_one_is(folder: Path) -> None:
    assert load_tokenizer(folder) is None
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "NoSuchTokenizer"}')
    with pytest.raises(CheckpointError, match="tokenizer"):
        load_tokenizer(folder)


def test_tokenizer_beside_the_model(folder: Path) -> None:
    tiny.tokenizer().save_pretrained(folder)
    found = load_tokenizer(folder)
    assert found is not None
    assert found("the cat").input_ids == tiny.tokenizer()("the cat").input_ids
    assert found.chat_template

"""A model repository that brings `custom_generate/generate.py`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, dynamic_module_utils

from dartree_core.ecosystem import write_custom_generate
from dartree_core.errors import ConfigError
from tests.core import tiny

PROMPT = torch.tensor([tiny.PROMPT])
OPTIONS: dict[str, Any] = {"max_new_tokens": 16, "do_sample": False, "pad_token_id": 0}


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A saved model and drafter; modules of repositories are cached in a folder of their own."""
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in [n for n in sys.modules if n.split(".")[0] == "transformers_modules"]:
        monkeypatch.delitem(sys.modules, name)
    folder = tmp_path / "model"
    tiny.target("llama").model.save_pretrained(folder)
    draft = tiny.save_draft(tmp_path / "draft", tiny.draft_config(tiny.target("llama")))
    write_custom_generate(folder, drafter=str(draft))
    return folder


def plain() -> list[list[int]]:
    model: Any = tiny.target("llama").model
    found: list[list[int]] = model.generate(PROMPT, **OPTIONS).tolist()
    return found


def test_any_model_may_borrow_it_by_name(repository: Path) -> None:
    model: Any = tiny.target("llama").model
    found = model.generate(
        PROMPT, custom_generate=str(repository), trust_remote_code=True, budget=8, **OPTIONS
    )
    assert found.tolist() == plain()


def test_a_model_loaded_with_its_code_generates_with_trees(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers then replaces the model's own `generate`, which must not call itself."""
    from dartree_core.engine import Decoder

    methods = []
    stream = Decoder.stream

    def watched(self: Any, prompt: Any, config: Any, **options: Any) -> Any:
        methods.append(config.method)
        return stream(self, prompt, config, **options)

    monkeypatch.setattr(Decoder, "stream", watched)
    model = AutoModelForCausalLM.from_pretrained(repository, trust_remote_code=True).eval()
    assert model.generate(PROMPT, **OPTIONS).tolist() == plain()
    assert model.generate(PROMPT, method="ddtree", **OPTIONS).tolist() == plain()
    assert methods == ["dartree", "ddtree"]


def test_writing_again_replaces_our_own_file_only(tmp_path: Path) -> None:
    file = write_custom_generate(tmp_path)
    assert "DRAFTER = None" in file.read_text()
    write_custom_generate(tmp_path, drafter="owner/name")
    assert "DRAFTER = 'owner/name'" in file.read_text()
    assert (tmp_path / "custom_generate" / "requirements.txt").read_text() == "dartree\n"
    file.write_text("def generate(model): ...")
    with pytest.raises(ConfigError, match=r"generate\.py exists") as error:
        write_custom_generate(tmp_path)
    assert error.value.remedy
    assert file.read_text() == "def generate(model): ..."

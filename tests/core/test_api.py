"""The examples of the README's Python section, on tiny models; every public name is there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

import dartree_core
from tests.core import tiny

TARGET = tiny.CHECKPOINTS / "target_tied"
DRAFT = tiny.CHECKPOINTS / "draft_tied_p0_s0"


def test_names_are_promised_without_importing_torch() -> None:
    code = (
        "import json, sys, dartree_core as d; "
        "print(json.dumps([d.__all__, [m for m in ('torch', 'transformers') if m in sys.modules]]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names, heavy = json.loads(done.stdout)
    assert heavy == []
    assert names == sorted(set(names))
    for name in names:
        assert getattr(dartree_core, name).__doc__, f"{name} has no documentation"
    with pytest.raises(AttributeError, match="no attribute 'draft_tree'"):
        _ = dartree_core.draft_tree


def test_load_and_stream() -> None:
    from dartree_core import DecodeConfig, load

    decoder = load(target=TARGET, draft=DRAFT, device="cpu", dtype="float32")
    config = DecodeConfig(method="dartree", max_new_tokens=12).with_changes(budget=16)
    tokens = []
    for event in decoder.stream(tiny.PROMPT, config):
        tokens += list(getattr(event, "tokens", ()))
    whole = decoder.generate(tiny.PROMPT, config)
    plain = decoder.generate(tiny.PROMPT, config.with_changes(method="ar"))
    assert list(whole.token_ids)[1:] == tokens
    assert list(whole.token_ids) == list(plain.token_ids)
    assert decoder.notes == ()


def test_a_model_of_ones_own_in_a_decoder() -> None:
    from dartree_core import DecodeConfig, Decoder, Target, load_drafter

    model = transformers.AutoModelForCausalLM.from_pretrained(TARGET).eval()
    target = Target(model)
    decoder = Decoder(target, load_drafter(DRAFT, target))
    config = DecodeConfig(max_new_tokens=12)
    plain = decoder.generate(tiny.PROMPT, config.with_changes(method="ar"))
    assert decoder.generate(tiny.PROMPT, config).token_ids == plain.token_ids


def test_transformers_generate() -> None:
    from dartree_core import custom_generate

    model = transformers.AutoModelForCausalLM.from_pretrained(TARGET).eval()
    inputs = {"input_ids": torch.tensor([tiny.PROMPT]), "max_new_tokens": 12, "pad_token_id": 0}
    found = model.generate(**inputs, custom_generate=custom_generate, drafter=str(DRAFT))
    assert found.tolist() == model.generate(**inputs).tolist()


def test_a_repository_that_generates_with_trees(tmp_path: Path) -> None:
    from dartree_core import write_custom_generate

    file = write_custom_generate(tmp_path, drafter="owner/drafter")
    assert file.relative_to(tmp_path) == Path("custom_generate/generate.py")
    compile(file.read_text(), file.name, "exec")

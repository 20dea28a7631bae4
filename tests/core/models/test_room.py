"""Weights that do not fit are refused before anything is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from dartree_core.errors import CapacityError
from dartree_core.models import load_target
from dartree_core.models.room import free_bytes, require_weights, weight_bytes
from tests.core import tiny

CPU = torch.device("cpu")


def test_this_machine_says_what_is_free() -> None:
    free = free_bytes(CPU)
    assert free is None or free > 0
    assert free_bytes(torch.device("meta")) is None


def test_weights_are_counted_as_they_will_be_loaded(tmp_path: Path) -> None:
    floats = {"a": torch.zeros(3, 5), "b": torch.zeros(7, dtype=torch.bfloat16)}
    save_file({**floats, "q": torch.zeros(11, dtype=torch.int8)}, tmp_path / "one.safetensors")
    save_file({"c": torch.zeros(())}, tmp_path / "two.safetensors", metadata={"format": "pt"})
    assert weight_bytes(tmp_path, torch.float32) == 4 * (15 + 7 + 1) + 11
    assert weight_bytes(tmp_path, torch.float16) == 2 * (15 + 7 + 1) + 11


def test_the_same_weights_in_another_layout_count_once(tmp_path: Path) -> None:
    weight = {"a": torch.zeros(3, 5)}
    save_file(weight, tmp_path / "model-00001-of-00001.safetensors")
    save_file(weight, tmp_path / "consolidated.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00001.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert weight_bytes(tmp_path, torch.float32) == 4 * 15
    (tmp_path / "model.safetensors.index.json").unlink()
    (tmp_path / "model-00001-of-00001.safetensors").rename(tmp_path / "model.safetensors")
    assert weight_bytes(tmp_path, torch.float32) == 4 * 15


def test_a_loaded_model_takes_what_was_predicted() -> None:
    path = tiny.CHECKPOINTS / "target_untied"
    target = load_target(path, device=CPU, dtype=torch.float32)
    held = sum(p.numel() * p.element_size() for p in target.model.parameters())
    assert weight_bytes(path, torch.float32) == held


@pytest.mark.parametrize(
    ("dtype", "remedy"), [(torch.float32, "--dtype bfloat16"), (torch.bfloat16, "smaller model")]
)
def test_too_little_memory_is_said_with_a_remedy(dtype: torch.dtype, remedy: str) -> None:
    path = tiny.CHECKPOINTS / "target_tied"
    needed = weight_bytes(path, dtype)
    assert needed
    require_weights(path, CPU, dtype, free=needed)
    with pytest.raises(CapacityError) as caught:
        require_weights(path, CPU, dtype, free=needed - 1)
    assert str(path) in caught.value.message
    assert remedy in caught.value.remedy


def test_loading_asks_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dartree_core.models.room.free_bytes", lambda device: 1000)
    with pytest.raises(CapacityError, match="of cpu memory are free"):
        load_target(tiny.CHECKPOINTS / "target_tied", device=CPU, dtype=torch.float32)


@pytest.mark.parametrize(
    "content", [b"", b"\x08\0\0\0\0\0\0\0{}", b"\x02\0\0\0\0\0\0\0[]", b"x" * 99]
)
def test_a_damaged_file_is_left_to_loading(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.safetensors").write_bytes(content)
    assert not weight_bytes(tmp_path, torch.float32)
    require_weights(tmp_path, CPU, torch.float32, free=0)

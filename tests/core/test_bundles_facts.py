from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path

import pytest
from safetensors import safe_open

from dartree_core import weights
from dartree_core.bundles import facts
from dartree_core.errors import CheckpointError

CHECKPOINTS = Path(__file__).parents[1] / "conformance" / "data" / "checkpoints"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CHECKPOINTS / "target_tied", tmp_path / "model"))


def test_facts_agree_with_the_tensors(model: Path) -> None:
    found = facts.read_facts(model)
    with safe_open(model / "model.safetensors", "np") as opened:
        shapes = [opened.get_tensor(name).size for name in opened.keys()]  # noqa: SIM118
        embedding = opened.get_slice("model.embed_tokens.weight").get_shape()
    assert found.parameters == sum(shapes)
    assert (found.vocab, found.hidden) == tuple(embedding)
    assert found.layers == 4
    assert found.heads is not None
    assert found.head_dim is not None
    assert found.bytes == sum(p.stat().st_size for p in model.iterdir())


def test_headers_agree_with_safetensors(model: Path) -> None:
    header = weights.read_header(model / "model.safetensors")
    with safe_open(model / "model.safetensors", "np") as opened:
        assert set(header) == set(opened.keys())
        for name, entry in header.items():
            assert entry["shape"] == opened.get_slice(name).get_shape()


def test_nested_text_configurations(model: Path) -> None:
    config = facts.read_config(model)
    (model / "config.json").write_text(json.dumps({"model_type": "x", "text_config": config}))
    found = facts.read_facts(model)
    assert found.layers == config["num_hidden_layers"]
    assert found.architecture == "x"


def cut(path: Path, keep: int) -> None:
    path.write_bytes(path.read_bytes()[:keep])


@pytest.mark.parametrize("keep", [0, 4, 8, 100, 3000, -1])
def test_cut_weights_are_refused(model: Path, keep: int) -> None:
    cut(model / "model.safetensors", keep)
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
        facts.require_whole(model)


@pytest.mark.parametrize(
    "header", [b"[]", b'{"a": 1}', b'{"a": {"shape": [1]}}', b"\xff\xff", b"{"]
)
def test_nonsense_headers_are_refused(tmp_path: Path, header: bytes) -> None:
    file = tmp_path / "x.safetensors"
    file.write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(CheckpointError, match="is damaged"):
        weights.read_header(file)


def test_a_huge_header_length_is_not_believed(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    file.write_bytes(struct.pack("<Q", 2**60) + b"{}")
    with pytest.raises(CheckpointError, match="is damaged"):
        weights.read_header(file)


def test_shards(model: Path) -> None:
    (model / "model.safetensors").rename(model / "model-1.safetensors")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="lacks 1 of 2 weight files, among them model-2"):
        facts.require_whole(model)
    shutil.copy(model / "model-1.safetensors", model / "model-2.safetensors")
    assert [p.name for p in weights.weight_files(model)] == [
        "model-1.safetensors",
        "model-2.safetensors",
    ]


def test_shards_without_their_index(model: Path) -> None:
    """As an interrupted download leaves them: the index comes last."""
    weights_of = (model / "model.safetensors").rename(model / "model-00001-of-00002.safetensors")
    with pytest.raises(CheckpointError, match="has 1 of 2 weight files, and no model"):
        facts.require_whole(model)
    shutil.copy(weights_of, model / "model-00002-of-00002.safetensors")
    facts.require_whole(model)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads all")
def test_a_file_that_may_not_be_read_is_not_called_damaged(model: Path) -> None:
    (model / "model.safetensors").chmod(0)
    with pytest.raises(CheckpointError, match="cannot be read: Permission denied"):
        facts.require_whole(model)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.ckpt"])
def test_pickles_are_refused_by_name(model: Path, name: str) -> None:
    (model / "model.safetensors").rename(model / name)
    with pytest.raises(CheckpointError, match=name) as caught:
        facts.require_whole(model)
    assert "safetensors" in caught.value.remedy


def test_no_weights_at_all(model: Path) -> None:
    (model / "model.safetensors").rename(model / "consolidated.safetensors")
    (model / "training_args.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="holds no weights"):
        facts.require_whole(model)


@pytest.mark.parametrize(
    ("text", "says"), [("{", "cannot be read"), ("[]", "is not a JSON object"), (None, "no model")]
)
def test_bad_configurations(model: Path, text: str | None, says: str) -> None:
    (model / "config.json").unlink()
    if text is not None:
        (model / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=says):
        facts.require_whole(model)

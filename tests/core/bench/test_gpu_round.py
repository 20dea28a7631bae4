"""The GPU benchmark runs through on a CPU with tiny shapes, and its arithmetic is right."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

from dartree_core.bench.roofline import pass_work
from dartree_core.bench.synthetic import SHAPES, synthetic_decoder, synthetic_target
from dartree_core.errors import ConfigError

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = Path(__file__).parents[3] / "benchmarks" / "gpu_round.py"
    spec = importlib.util.spec_from_file_location("gpu_round", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_tiny_run_measures_everything(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out.json"
    given = "--shape tiny --device cpu --dtype float32 --context 20 --rounds 2 --budget 20 --quiet"
    assert script.main([*given.split(), "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert set(found["runs"]) == {"ar_eager", "round_eager", "ar_graphs", "round_graphs"}
    for run in found["runs"].values():
        assert 0 < run["ms_q1"] <= run["ms"] <= run["ms_q3"]
    assert found["runs"]["round_graphs"]["nodes"] == 20
    assert found["runs"]["ar_graphs"]["nodes"] == 0
    assert found["verdict"]["verify_rows"] == 21
    assert found["arguments"]["shape"] == "tiny"
    assert all(value > 0 for value in found["parts_ms"].values())
    printed = capsys.readouterr().out
    for words in ("plain step", "DARTree round", "goal 70%", "goal 1.3 at B=64"):
        assert words in printed


def test_no_device_is_a_usage_error(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    assert script.main(["--shape", "tiny"]) == 2
    assert "no CUDA device" in capsys.readouterr().err


def test_published_shapes_have_their_published_sizes() -> None:
    """4.0 and 8.2 billion parameters, without the norms."""

    def parameters(shape: str) -> float:
        s = SHAPES[shape]
        width = s["num_attention_heads"] * s["head_dim"]
        kv = s["num_key_value_heads"] * s["head_dim"]
        layer = s["hidden_size"] * (2 * width + 2 * kv + 3 * s["intermediate_size"])
        tables = 1 if s["tie_word_embeddings"] else 2
        tables *= s["vocab_size"] * s["hidden_size"]
        return float(layer * s["num_hidden_layers"] + tables) / 1e9

    assert parameters("qwen3-4b") == pytest.approx(4.02, abs=0.01)
    assert parameters("qwen3-8b") == pytest.approx(8.19, abs=0.01)


def test_a_pass_works_at_least_what_its_weights_are() -> None:
    target = synthetic_target("tiny", CPU, torch.float32)
    model = SHAPES["tiny"]
    products = 4 * 32 * (2 * 32 + 2 * 16 + 3 * 48) + 96 * 32
    one = pass_work(target, 1, 0)
    assert one.bytes == 4 * (products + 2 * 4 * 16)
    assert one.flop == 2 * products + 4 * 4 * 32
    more = pass_work(target, 64, 1000)
    assert more.flop > 64 * one.flop
    assert more.bytes - one.bytes == 4 * 2 * 4 * 16 * (1000 + 63)
    assert model["num_hidden_layers"] == target.num_layers


def test_synthetic_models_decode() -> None:
    decoder = synthetic_decoder("tiny", CPU, torch.bfloat16)
    assert decoder.target.dtype == torch.bfloat16
    assert decoder.drafter is not None
    assert decoder.drafter.spec.head == "domino"
    with pytest.raises(ConfigError, match="no shape"):
        synthetic_target("qwen9", CPU, torch.float32)

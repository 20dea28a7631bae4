"""Fused kernels: right by Triton's interpreter, and built for a GPU, on machines without one."""

from __future__ import annotations

import importlib.util
import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dartree_core.models import fused
from dartree_core.models.fused import fused_for

triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="this PyTorch came without Triton"
)
HERE = Path(__file__).parent


def run(script: str, folder: Path, **environment: str) -> str:
    """A script's output, in a process of its own: Triton reads its settings once, on import."""
    path = os.pathsep.join([str(HERE.parents[2]), *sys.path])
    done = subprocess.run(
        [sys.executable, str(HERE / script)],
        env={
            **os.environ,
            "PYTHONPATH": path,
            "OMP_NUM_THREADS": "1",
            "TRITON_CACHE_DIR": str(folder),
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@triton
def test_interpreted_kernels_agree_with_pytorch(tmp_path: Path) -> None:
    said = run("interpret_fused.py", tmp_path, TRITON_INTERPRET="1")
    assert said.count("passes agree") == 2
    assert "drafts agree" in said
    assert "overflow stays out" in said


@triton
def test_kernels_compile_for_hopper(tmp_path: Path) -> None:
    assert len(run("compile_fused.py", tmp_path, TRITON_INTERPRET="0").splitlines()) == 8


def stand_in(**changes: Any) -> Any:
    """What `fused_for` asks of a target."""
    known = {"device": torch.device("cuda"), "dtype": torch.bfloat16, "head_dim": 128}
    return SimpleNamespace(**known | changes)


@pytest.mark.parametrize(
    "changes", [{"device": torch.device("cpu")}, {"dtype": torch.float32}, {"head_dim": 80}]
)
def test_other_devices_dtypes_and_heads_are_left_to_pytorch(changes: dict[str, Any]) -> None:
    assert fused_for(stand_in(**changes)) is None


def test_kernels_that_fail_on_a_device_are_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def properties(device: torch.device) -> Any:
        return SimpleNamespace(multi_processor_count=132)

    def check(*_: Any) -> None:
        raise AssertionError("Tensor-likes are not close!\n\nMismatched elements: all")

    class Idle:
        def __init__(self, *_: Any) -> None:
            return

        @classmethod
        def of(cls, *_: Any) -> Idle:
            return cls()

        def __enter__(self) -> None:
            return

        def __exit__(self, *_: Any) -> None:
            return

    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace())
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    monkeypatch.setattr(torch.cuda, "device", Idle)
    monkeypatch.setattr(fused, "Fused", Idle)
    monkeypatch.setattr(fused, "check", check)
    monkeypatch.delenv(fused.ENV, raising=False)
    with caplog.at_level(logging.WARNING):
        assert fused_for(stand_in()) is None
    assert "not close" in caplog.text
    assert fused.ENV in caplog.text
    caplog.clear()
    monkeypatch.setenv(fused.ENV, "0")
    assert fused_for(stand_in()) is None
    assert not caplog.records
    monkeypatch.delenv(fused.ENV)
    monkeypatch.setattr(fused, "check", lambda *_: None)
    assert fused_for(stand_in()) is not None

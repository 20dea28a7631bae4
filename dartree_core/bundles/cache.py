"""Where fetched models live, and how a folder there is either whole or absent.

A folder is built beside its destination, written through to the disk and then renamed, under a
lock, so that an interrupted run or two at once leave nothing half made. A small manifest lets
later starts trust it without hashing half a gigabyte.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dartree_core.bundles.progress import Progress, silent
from dartree_core.errors import BundleError

ENV = "DARTREE_HOME"
MANIFEST = "manifest.json"
FORMAT = 1
_CHUNK = 1 << 20
_ELSEWHERE = f"or set {ENV} to a folder on another disk"


def home() -> Path:
    """The folder for everything this program caches: `$DARTREE_HOME`, else the user's cache.

    Nothing is created. An empty `DARTREE_HOME` counts as unset.
    """
    given = os.environ.get(ENV, "").strip()
    if given:
        return Path(os.path.abspath(os.path.expanduser(given)))
    from platformdirs import user_cache_path

    return user_cache_path("dartree", appauthor=False)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a built folder is and which files it must hold.

    Attributes:
        source: Identity of what it was made from; another identity makes the folder stale.
        files: File name to size in bytes and SHA-256.
        dtype: Of the stored weights.
        parameters: Number of stored weights.
        created: UTC time, ISO 8601.
        versions: Of the packages that made it.
        format: Version of this layout.
    """

    source: Mapping[str, Any]
    files: Mapping[str, Mapping[str, Any]]
    dtype: str
    parameters: int
    created: str
    versions: Mapping[str, str] = field(default_factory=dict)
    format: int = FORMAT

    def write(self, folder: Path) -> None:
        """Store it in `folder`."""
        (folder / MANIFEST).write_text(json.dumps(asdict(self), indent=2) + "\n", "utf-8")

    @classmethod
    def read(cls, folder: Path) -> Manifest | None:
        """The manifest of `folder`, or None when it has none that can be read."""
        try:
            data = json.loads((folder / MANIFEST).read_text("utf-8"))
            return cls(**{k: v for k, v in data.items() if k in cls.__slots__})
        except (OSError, ValueError, TypeError, AttributeError):
            return None


def list_files(folder: Path) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of every file directly in `folder`, for a manifest."""
    return {
        path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)}
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name != MANIFEST
    }


def problem_with(
    folder: Path, source: Mapping[str, Any], *, thorough: bool = False, progress: Progress = silent
) -> str | None:
    """Why `folder` cannot be used, or None when it can.

    Args:
        folder: A built folder.
        source: The identity it must have been made from.
        thorough: Hash every file instead of comparing sizes.
        progress: Hears of the hashing.
    """
    if not folder.is_dir():
        return "it is not there"
    manifest = Manifest.read(folder)
    if manifest is None:
        return f"its {MANIFEST} is missing or damaged"
    if manifest.format != FORMAT or dict(manifest.source) != dict(source):
        return "it was made from other files or by another version"
    for name, facts in manifest.files.items():
        path = folder / name
        try:
            size = path.stat().st_size
        except OSError:
            return f"{name} is missing"
        if size != facts["bytes"]:
            return f"{name} has {size} bytes instead of {facts['bytes']}"
        if thorough and sha256(path, f"checking {name}", progress) != facts["sha256"]:
            return f"{name} does not match its SHA-256"
    return None


def sha256(path: Path, what: str = "", progress: Progress = silent) -> str:
    """SHA-256 of a file, in hexadecimal."""
    digest, done, total = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            progress(what, done, total, "bytes")
    return digest.hexdigest()


@contextmanager
def locked(dest: Path, progress: Progress = silent) -> Iterator[None]:
    """Hold the lock of `dest`, waiting while another process builds it.

    Raises:
        BundleError: The cache cannot be written.
    """
    from filelock import FileLock, Timeout

    with explained(dest):
        dest.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(dest.parent / f".{dest.name}.lock")
        while True:
            try:
                lock.acquire(timeout=0.3)
                break
            except Timeout:
                progress(f"waiting for another process to build {dest.name}", 0, 0, "steps")
    try:
        yield
    finally:
        lock.release()


@contextmanager
def replacing(dest: Path) -> Iterator[Path]:
    """A new folder beside `dest` to fill; it becomes `dest` when the block ends without error.

    On any error, Ctrl-C included, it is removed and `dest` stays as it was. Call it under
    `locked(dest)`: leftovers of killed runs are cleared away first.
    """
    with explained(dest):
        for old in dest.parent.glob(f".{dest.name}-*.partial"):
            shutil.rmtree(old, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{dest.name}-", suffix=".partial", dir=dest.parent))
    try:
        yield folder
        with explained(dest):
            folder.chmod(0o755)
            _sync(folder)
            _swap(folder, dest)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _sync(folder: Path) -> None:
    for path in [*folder.iterdir(), folder]:
        # Directories cannot be opened everywhere (Windows); the rename is atomic regardless.
        with suppress(PermissionError):
            descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _swap(folder: Path, dest: Path) -> None:
    if not dest.exists():
        folder.rename(dest)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{dest.name}-", suffix=".partial", dir=dest.parent))
    dest.rename(old / "old")
    try:
        folder.rename(dest)
    except OSError:
        (old / "old").rename(dest)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def require_space(dest: Path, needed: int) -> None:
    """Check that the disk of `dest` has `needed` bytes free.

    Raises:
        BundleError: It has less; the remedy names the sizes.
    """
    place = dest
    while not place.exists() and place != place.parent:
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < needed:
        raise BundleError(
            f"Not enough disk space in {dest.parent}: {_mb(needed)} are needed and {_mb(free)} "
            "are free.",
            f"Free some space, {_ELSEWHERE}.",
        )


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"


@contextmanager
def explained(dest: Path) -> Iterator[None]:
    """Turn operating system errors about the cache into ones a user can act on.

    Raises:
        BundleError: In place of any OSError.
    """
    try:
        yield
    except OSError as error:
        raise _explain(error, dest) from error


def _explain(error: OSError, dest: Path) -> BundleError:
    place = error.filename or dest
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return BundleError(
            f"The disk became full while writing to {dest.parent}; nothing half made was kept.",
            f"Free some space, {_ELSEWHERE}.",
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return BundleError(
            f"The model cache cannot be written: {place} ({error.strerror}).",
            f"Make it writable, or set {ENV} to a folder that is.",
        )
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return BundleError(
            f"The model cache needs a folder where there is a file: {place}.",
            f"Move the file away, or set {ENV} to a folder.",
        )
    return BundleError(
        f"The model cache failed at {place}: {error.strerror or error}.",
        f"Check the disk, {_ELSEWHERE}.",
    )

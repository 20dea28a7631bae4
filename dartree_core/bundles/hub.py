"""Models of the Hugging Face hub, in the hub's own cache: what is there, fetched or removed.

Only configuration, tokenizer and safetensors files are fetched, never pickles, and Python files
only when the user trusts the repository's code.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

from dartree_core.bundles import facts
from dartree_core.bundles.cache import require_space
from dartree_core.bundles.progress import Progress, silent, size_of, watch
from dartree_core.errors import BundleError, CheckpointError, DARTreeError
from dartree_core.weights import refuse_pickles

_WANTED = (
    *("*.json", "*.safetensors", "*.jinja", "*.model", "*.tiktoken"),
    *("merges.txt", "vocab.txt"),
)
_CODE = ("*.py",)
_UNWANTED = ("*/*", "consolidated*")
"""Files in subfolders are other formats of the same weights or training leftovers."""

_STORING = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)
"""Faults of the disk, not of the network."""

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def split_id(text: str) -> tuple[str, str] | None:
    """`owner/name` or `owner/name@revision` as (repo, revision); None for anything else."""
    repo, _, revision = text.partition("@")
    return (repo, revision or "main") if _ID.fullmatch(repo) else None


def cached(repo: str, revision: str, *, code: bool = False, tokenizer: bool = False) -> Path | None:
    """The snapshot folder when it is whole in the hub's cache, else None; network-free.

    Args:
        repo, revision: What to look for.
        code: Whether Python files belong to it, where the model brings some.
        tokenizer: Whether a tokenizer does: other programs cache weights without one.
    """
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repo, "config.json", revision=revision)
    if not isinstance(found, str):
        return None
    folder = Path(found).parent
    try:
        facts.require_whole(folder)
        needs_code = code and facts.read_config(folder).get("auto_map")
    except CheckpointError:
        return None
    if tokenizer and not any(folder.glob("tokenizer*")):
        return None
    return None if needs_code and not any(folder.glob("*.py")) else folder


def snapshot(
    repo: str,
    revision: str,
    progress: Progress = silent,
    *,
    code: bool = False,
    tokenizer: bool = False,
) -> Path:
    """The snapshot folder, fetched first when it is not whole in the hub's cache.

    Args:
        repo, revision: What to fetch.
        progress: The listener.
        code: Also fetch Python files.
        tokenizer: Ask the hub for a tokenizer where the cache holds none; without a network,
            what is there has to do.

    Raises:
        BundleError: It does not exist, needs access, or cannot be reached.
        CheckpointError: It holds only pickled weights, or none.
    """
    if folder := cached(repo, revision, code=code, tokenizer=tokenizer):
        return folder
    try:
        return _fetched(repo, revision, progress, code=code)
    except BundleError:
        if folder := cached(repo, revision, code=code):
            return folder
        raise


def _fetched(repo: str, revision: str, progress: Progress, *, code: bool) -> Path:
    from huggingface_hub import HfApi, snapshot_download

    patterns = [*_WANTED, *(_CODE if code else ())]
    with _explained(repo, revision):
        info = HfApi().model_info(repo, revision=revision, files_metadata=True)
        sizes = {s.rfilename: s.size or 0 for s in info.siblings or ()}
        _require_safetensors(repo, list(sizes))
        total = sum(
            size
            for name, size in sizes.items()
            if any(fnmatch(name, p) for p in patterns)
            and not any(fnmatch(name, p) for p in _UNWANTED)
        )
        place = _folder(repo)
        require_space(place, max(0, total - size_of(place)))
        with _no_bars():
            path = watch(
                lambda: snapshot_download(
                    repo,
                    revision=revision,
                    allow_patterns=patterns,
                    ignore_patterns=list(_UNWANTED),
                ),
                place,
                f"downloading {repo}",
                total,
                progress,
            )
    folder = Path(path)
    facts.require_whole(folder)
    return folder


def disk_use(repo: str) -> int:
    """Bytes of the repository in the hub's cache."""
    return size_of(_folder(repo))


def remove(repo: str) -> int:
    """Delete every cached revision of the repository; returns the bytes freed.

    Raises:
        BundleError: The files cannot be deleted.
    """
    from huggingface_hub import scan_cache_dir

    before = disk_use(repo)
    if not before:
        return 0
    try:
        cache = scan_cache_dir()
        commits = [
            revision.commit_hash
            for found in cache.repos
            if found.repo_id == repo and found.repo_type == "model"
            for revision in found.revisions
        ]
        cache.delete_revisions(*commits).execute()
    except OSError as error:
        raise BundleError(
            f"{repo} could not be removed from the hub's cache: {error}.",
            f"Delete {_folder(repo)} by hand.",
        ) from error
    return before - disk_use(repo)


def _folder(repo: str) -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}"


def _require_safetensors(repo: str, names: list[str]) -> None:
    top = [name for name in names if "/" not in name]
    if any(name.endswith(".safetensors") for name in top):
        return
    pickles = [name for name in top if name.endswith((".bin", ".pt", ".pth", ".ckpt"))]
    if pickles:
        raise refuse_pickles(repo, pickles)
    raise CheckpointError(
        f"The repository {repo} holds no safetensors weights.",
        "Name the repository of a transformers model; a GGUF file can be given as a local file.",
    )


@contextmanager
def _no_bars() -> Iterator[None]:
    """Keep the hub's own progress bars off the terminal."""
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    were_off = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if not were_off:
            enable_progress_bars()


@contextmanager
def _explained(repo: str, revision: str) -> Iterator[None]:
    """The hub's many exceptions as ones a user can act on.

    Raises:
        BundleError: In place of any of them.
    """
    from huggingface_hub import errors

    try:
        yield
    except DARTreeError:
        raise
    except errors.GatedRepoError as error:
        raise BundleError(
            f"{repo} is gated: its owners grant access one by one.",
            "Ask for access on its page, then run `hf auth login`.",
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise BundleError(
            f"There is no model {repo} on the hub, or it is private.",
            "Check the spelling; for a private one run `hf auth login`.",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise BundleError(
            f"{repo} has no revision {revision!r}.", "Name a branch, tag or commit that it has."
        ) from error
    # What is left is the network, in the words of whichever HTTP library the hub client uses.
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _STORING:
            raise BundleError(
                f"{repo} could not be stored: {error}.",
                "Free some space, or set HF_HOME to a writable folder on another disk.",
            ) from error
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise BundleError(
            f"{repo} is not in the hub's cache and could not be fetched: {reason.rstrip('.')}.",
            "Check the network (and that HF_HUB_OFFLINE is not set), or give a local folder.",
        ) from error

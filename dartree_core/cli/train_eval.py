"""`dartree train eval`: what a drafter is worth."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dartree_core.cli import options as opt
from dartree_core.cli.output import Format, print_json, progress_bars
from dartree_core.cli.train_models import TrainModels
from dartree_core.config import METHODS, Method
from dartree_core.errors import ConfigError

if TYPE_CHECKING:
    from dartree_core.train.corpus import Corpus
    from dartree_core.train.evaluate import Row, Variant
    from dartree_core.train.measure import Accuracy


def evaluate(
    draft: Annotated[
        str | None, typer.Argument(metavar="[DRAFTER]", help="Folder or hub id; the bundle's own.")
    ] = None,
    prompts: Annotated[
        list[Path] | None,
        typer.Option("--prompts", help="Decode these for real (JSON Lines); repeatable."),
    ] = None,
    held_out: Annotated[
        list[Path] | None,
        typer.Option("--held-out", help="Corpus for accuracy per slot; repeatable."),
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option("--method", help="Repeatable; all drafting ones.")
    ] = None,
    budget: Annotated[
        list[int] | None, typer.Option("--budget", help="Repeatable; 16 and 64.")
    ] = None,
    temperature: Annotated[
        list[float] | None, typer.Option("--temperature", help="Repeatable; 0.")
    ] = None,
    depth_bonus: Annotated[
        float, typer.Option("--depth-bonus", help="Added per depth when pruning.")
    ] = 0.0,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Most prompts of each file.")
    ] = 20,
    max_new_tokens: opt.MaxNewTokens = 128,
    seed: Annotated[int, typer.Option("--seed", help="Of sampling.")] = 0,
    bundle: opt.Bundle = "demo",
    target: opt.Target = None,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    trust_remote_code: opt.TrustRemoteCode = False,
    output: Annotated[Format, typer.Option("--format", help="How to print.")] = Format.TEXT,
    save: Annotated[
        Path | None, typer.Option("--save", help="Also write the figures as JSON.")
    ] = None,
    debug: opt.Debug = False,
) -> None:
    """Measure a drafter: accuracy per slot on held-out answers, acceptance in real decoding."""
    if not prompts and not held_out:
        raise ConfigError(
            "There is nothing to measure on.",
            "Give --held-out CORPUS for accuracy, --prompts FILE for real decoding, or both.",
        )
    methods = _methods(method or [m for m in METHODS if m != "ar"])
    budgets = budget or [16, 64]
    from dartree_core.train.corpus import read_corpus
    from dartree_core.train.prompts import read_prompts

    rows = read_prompts(prompts, limit=limit) if prompts else []
    answers = read_corpus(held_out).usable() if held_out else None
    from dartree_core.train import evaluate as ev

    wanted = ev.variants(methods, budgets)
    ev.check(wanted, temperature or [0.0], depth_bonus, max_new_tokens)
    if save is not None and not save.parent.is_dir():
        raise ConfigError(f"The folder {save.parent} does not exist.", "Create it first.")
    choice = opt.ModelChoice(bundle, target, draft, device, dtype, trust_remote_code)
    accuracy, left_out = None, ""
    found: list[Row] = []
    if answers is not None:
        accuracy, forced, left_out = _forced(choice, answers, wanted, depth_bonus)
        found += forced
    if rows:
        decoder = choice.load()
        if decoder.drafter is None:
            raise _no_drafter()
        with progress_bars() as bars:
            for heat in temperature or [0.0]:
                found += ev.decoded_rows(
                    decoder,
                    rows,
                    wanted,
                    heat,
                    max_new_tokens=max_new_tokens,
                    depth_bonus=depth_bonus,
                    seed=seed,
                    progress=lambda what, done, of: bars(what, done, of, "steps"),
                )
    report = ev.to_json(found, accuracy)
    if output is Format.JSON:
        print_json(report)
    else:
        _print_tables(found, accuracy)
    if left_out:
        typer.echo(left_out, err=True)
    if save is not None:
        save.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def _print_tables(found: Sequence[Row], accuracy: Accuracy | None) -> None:
    from rich.console import Console

    from dartree_core.train.tables import acceptance_table, accuracy_table

    console = Console()
    if accuracy is not None:
        console.print(accuracy_table(accuracy))
    console.print(acceptance_table(found))


def _forced(
    choice: opt.ModelChoice, answers: Corpus, wanted: Sequence[Variant], depth_bonus: float
) -> tuple[Accuracy | None, list[Row], str]:
    """Accuracy, acceptance along the answers, and why there is no accuracy, or ""."""
    from dartree_core.draft import Drafter, read_checkpoint
    from dartree_core.train import evaluate as ev

    models = TrainModels.load(choice)
    if models.draft is None:
        raise _no_drafter()
    checkpoint = read_checkpoint(models.draft)
    drafter = Drafter(checkpoint, models.target)
    part = ev.foreign_part(checkpoint, drafter)
    with progress_bars() as bars:
        bars("held-out answers", 0, 0, "steps")
        accuracy, rows = ev.held_out(
            drafter,
            answers,
            wanted,
            depth_bonus,
            lambda what, done, of: bars(what, done, of, "steps"),
            per_slot=not part,
        )
    left_out = f"Accuracy per slot is left out: this drafter has {part}." if part else ""
    return accuracy, rows, left_out


def _no_drafter() -> ConfigError:
    return ConfigError(
        "There is no drafter to measure.", "Name its folder: dartree train eval FOLDER"
    )


def _methods(names: list[str]) -> list[Method]:
    known = {m for m in METHODS if m != "ar"}
    wrong = [name for name in names if name not in known]
    if wrong:
        raise ConfigError(
            f"There is no drafting method {', '.join(wrong)}.",
            f"Choose from: {', '.join(m for m in METHODS if m != 'ar')}.",
        )
    return [m for name in names for m in METHODS if m == name]

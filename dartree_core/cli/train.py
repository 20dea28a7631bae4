"""`dartree train`: corpora by the target itself, drafters from them, and what they are worth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from dartree_core.cli import options as opt
from dartree_core.cli.output import progress_bars
from dartree_core.cli.train_eval import evaluate
from dartree_core.cli.train_models import TrainModels
from dartree_core.errors import ConfigError
from dartree_core.parallel.world import World
from dartree_core.train.recipe import PRESETS, Recipe, preset

INTERRUPTED = 130

app = typer.Typer(
    help="Train a drafter and correction head for any target: corpus, drafter, eval.",
    no_args_is_help=True,
)


@app.command()
def corpus(
    prompts: Annotated[
        list[Path], typer.Argument(metavar="PROMPTS...", help="JSON Lines of prompt or turns.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Directory of the shards.")],
    bundle: opt.Bundle = "demo",
    target: opt.Target = None,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    trust_remote_code: opt.TrustRemoteCode = False,
    temperature: Annotated[
        list[float] | None,
        typer.Option(
            "--temperature", help="One is drawn for each prompt; repeat it. Mostly 0 by default."
        ),
    ] = None,
    max_new_tokens: opt.MaxNewTokens = 512,
    max_prompt_tokens: Annotated[
        int, typer.Option("--max-prompt-tokens", help="Longer prompts are left out.")
    ] = 1024,
    batch: Annotated[int, typer.Option("--batch", help="Prompts answered together.")] = 16,
    shard: Annotated[int, typer.Option("--shard", help="Prompts in one file.")] = 256,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Most prompts of each file.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Order, temperatures, sampling.")] = 0,
    thinking: Annotated[
        bool, typer.Option("--thinking/--no-thinking", help="For templates that can think.")
    ] = False,
    debug: opt.Debug = False,
) -> None:
    """Let the target answer prompts. Run it again to go on after a kill: whole shards are kept."""
    from dartree_core.train.prompts import read_prompts

    rows = read_prompts(prompts, limit=limit)
    from dartree_core.train.collect import Collected, CollectSettings, collect
    from dartree_core.train.features import describe_target
    from dartree_core.train.quick import answerer

    settings = CollectSettings(
        temperatures=tuple(temperature) if temperature else CollectSettings().temperatures,
        max_new_tokens=max_new_tokens,
        max_prompt_tokens=max_prompt_tokens,
        batch=batch,
        shard=shard,
        seed=seed,
        thinking=thinking,
    )
    choice = opt.ModelChoice(bundle, target, "none", device, dtype, trust_remote_code)
    models = TrainModels.load(choice)
    if models.tokenizer is None:
        raise ConfigError(
            "This target has no tokenizer, so it cannot read prompts.",
            "Give a model directory with tokenizer files.",
        )
    with progress_bars() as bars:

        def progress(now: Collected) -> None:
            bars(
                f"answering: {now.answers:,} answers, {now.tokens:,} tokens",
                now.shards,
                now.of,
                "steps",
            )

        digest = describe_target(models.target)
        quick = answerer(models.target)
        done = collect(quick, models.tokenizer, rows, out, settings, progress, digest)
    shards = "1 shard" if done.of == 1 else f"{done.of} shards"
    typer.echo(f"{out}: {shards}; {done.answers:,} answers and {done.tokens:,} tokens made now.")
    if done.skipped:
        longest = min(max_prompt_tokens, models.target.max_positions - 1)
        typer.echo(f"Left out: {done.skipped} prompts over {longest} tokens.")


@app.command()
def drafter(
    corpora: Annotated[
        list[Path] | None,
        typer.Argument(metavar="CORPUS...", help="Shards (.npz), or directories of them."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Where the drafter goes; run again to go on.")
    ] = None,
    held_out: Annotated[
        list[Path] | None, typer.Option("--held-out", help="Corpus to measure on; repeatable.")
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option("--recipe", help=f"{', '.join(PRESETS)}, or a TOML file."),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.NAME=VALUE", help="Change one setting."),
    ] = None,
    start: Annotated[
        str, typer.Option("--init", help="First weights: target, random, or a drafter's folder.")
    ] = "target",
    cache: Annotated[
        Path | None,
        typer.Option("--cache", help="Hidden states on disk, see features.cache_gb."),
    ] = None,
    licence: Annotated[str, typer.Option("--licence", help="SPDX id for the model card.")] = "",
    shard_target: Annotated[
        bool,
        typer.Option(
            "--shard-target",
            help="Under torchrun: hold the target in parts, for one larger than a device.",
        ),
    ] = False,
    print_recipe: Annotated[
        bool, typer.Option("--print-recipe", help="Print the recipe and exit.")
    ] = False,
    bundle: opt.Bundle = "demo",
    target: opt.Target = None,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    trust_remote_code: opt.TrustRemoteCode = False,
    debug: opt.Debug = False,
) -> None:
    """Train a drafter with its correction head on a target's answers.

    Killed or interrupted, the same command goes on where it stopped. Under torchrun every
    process takes a share of each step. The small recipe suits a CPU; 4b and 8b need a GPU.
    """
    settings = _recipe(recipe, changes or [], out)
    if print_recipe:
        typer.echo(settings.to_toml(), nl=False)
        return
    if not corpora or out is None:
        raise ConfigError(
            "Training needs a corpus and a place for the drafter.",
            "For example: dartree train drafter answers/ --out my-drafter",
        )
    from dartree_core.train.corpus import read_corpus
    from dartree_core.train.drive import drive
    from dartree_core.train.initialise import Start
    from dartree_core.train.parallel import join, leave
    from dartree_core.train.run import Inputs, open_run, work_files

    answers = read_corpus(corpora)
    kept_apart = read_corpus(held_out) if held_out else None
    first = Start.parse(start)
    where = World.here().device(device)
    choice = opt.ModelChoice(bundle, target, "none", where, dtype, trust_remote_code)
    models = TrainModels.load(choice, in_parts=shard_target)
    tokenizer = models.tokenizer
    world = join(models.target.device)
    if cache is None and settings.features.cache_gb > 0:
        cache = work_files(out)[0].parent / "features"
    inputs = Inputs(
        target=models.target,
        corpus=answers,
        held_out=kept_apart,
        out=out,
        start=first,
        special_tokens=tuple(tokenizer.all_special_ids) if tokenizer is not None else (),
        cache=cache,
        licence=licence,
    )
    try:
        run = open_run(settings, inputs, world)
        finished = drive(run, settings, out)
    finally:
        leave()
    if not finished:
        raise SystemExit(INTERRUPTED)


app.command("eval")(evaluate)


def _recipe(given: str | None, changes: list[str], out: Path | None) -> Recipe:
    """The named recipe, else the one an unfinished run was begun with, else `small`."""
    stored = out / "training" / "recipe.toml" if out else None
    if given is None:
        base = Recipe.from_toml(stored) if stored and stored.is_file() else preset("small")
    elif given in PRESETS or not Path(given).is_file():
        base = preset(given)
    else:
        base = Recipe.from_toml(given)
    return Recipe.from_dict(_changes(changes), base)


def _changes(texts: list[str]) -> dict[str, dict[str, Any]]:
    out: dict[str, dict[str, Any]] = {}
    for text in texts:
        place, equals, value = text.partition("=")
        section, dot, name = place.partition(".")
        if not (equals and dot):
            raise ConfigError(
                f"--set {text} is no setting.", "Write it as in --set run.steps=2000."
            )
        try:
            parsed = json.loads(value)
        except ValueError:
            parsed = value
        out.setdefault(section.strip(), {})[name.strip()] = parsed
    return out

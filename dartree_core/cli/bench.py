"""`dartree bench`: the field's tables on one's own machine, model and prompts."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dartree_core import machine
from dartree_core.bench.plan import (
    AXES,
    PEERS,
    Plan,
    Variant,
    parse_sweeps,
    parse_values,
    variants,
)
from dartree_core.cli import options as opt
from dartree_core.cli.bench_places import Places
from dartree_core.cli.bench_show import Format, tell
from dartree_core.config import METHODS
from dartree_core.errors import ConfigError, DARTreeError
from dartree_core.parallel.world import World

if TYPE_CHECKING:
    from dartree_core.bench.datasets import Dataset
    from dartree_core.bench.peers import PeerSource
    from dartree_core.bench.run import Bench
    from dartree_core.engine import Decoder

INTERRUPTED = 130
_WHAT, _RUN, _OUT = "What to measure", "The run", "Reports"


def bench(
    context: typer.Context,
    sweeps: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=VALUES]...", help="Further sweeps, as in width=4,8."),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help=f"Commas between: {', '.join((*METHODS, *PEERS))}. Default: all our own.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    datasets: Annotated[
        str,
        typer.Option(
            help="Commas between: builtin, gsm8k, math500, aime25, humaneval, mbpp, mt-bench, "
            "alpaca, livecodebench, or .jsonl files; gsm8k:20 takes 20 prompts.",
            rich_help_panel=_WHAT,
        ),
    ] = "builtin",
    data_dir: Annotated[
        list[Path] | None,
        typer.Option(help="Where .jsonl files are; also DARTREE_DATA.", rich_help_panel=_WHAT),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Most prompts of each.", rich_help_panel=_WHAT)
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUES",
            help=f"As in budget=4,8,16: {', '.join(AXES)}.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    temperature: Annotated[
        str, typer.Option(help="One or several, as in 0,1.", rich_help_panel=_WHAT)
    ] = "0",
    budget: Annotated[
        str, typer.Option(help="One or several: nodes, or auto.", rich_help_panel=_WHAT)
    ] = "auto",
    width: Annotated[
        str | None, typer.Option(help="One or several.", rich_help_panel=_WHAT)
    ] = None,
    candidates: Annotated[
        str | None, typer.Option(help="One or several.", rich_help_panel=_WHAT)
    ] = None,
    block_size: Annotated[
        str | None, typer.Option(help="One or several.", rich_help_panel=_WHAT)
    ] = None,
    depth_bonus: Annotated[
        str | None, typer.Option(help="One or several.", rich_help_panel=_WHAT)
    ] = None,
    coupled: Annotated[
        str | None,
        typer.Option(
            help="on, off or both: draft with the target's noise when sampling.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    assistant: Annotated[
        str | None,
        typer.Option(help="Model of hf-assistant: folder or hub id.", rich_help_panel=_WHAT),
    ] = None,
    run_code: Annotated[
        bool,
        typer.Option(
            "--run-code",
            help="Run programs the model writes, in a limited child process, to score humaneval "
            "and mbpp. They can read your files.",
            rich_help_panel=_WHAT,
        ),
    ] = False,
    max_new_tokens: opt.MaxNewTokens = 256,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Always decode to the limit.")
    ] = False,
    bundle: opt.Bundle = "demo",
    target: opt.Target = None,
    draft: opt.Draft = None,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    device_map: opt.DeviceMap = None,
    trust_remote_code: opt.TrustRemoteCode = False,
    graphs: opt.Graphs = True,
    top_k: opt.TopK = None,
    top_p: opt.TopP = None,
    min_p: opt.MinP = None,
    repetition_penalty: opt.RepetitionPenalty = None,
    seed: opt.Seed = None,
    system: opt.System = None,
    raw: opt.Raw = False,
    thinking: Annotated[
        bool,
        typer.Option("--thinking/--no-thinking", help="For templates that can think."),
    ] = False,
    tp: Annotated[
        bool,
        typer.Option(
            "--tp",
            help="Under torchrun: split the target over the processes, not the prompts.",
            rich_help_panel=_RUN,
        ),
    ] = False,
    repeat: Annotated[
        int,
        typer.Option(
            min=1,
            help="Decode each prompt so often by every method; the pass of median time counts.",
            rich_help_panel=_RUN,
        ),
    ] = 1,
    max_minutes: Annotated[
        float | None,
        typer.Option(min=0, help="Begin no prompt after this time.", rich_help_panel=_RUN),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with --output's run.", rich_help_panel=_RUN)
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(help="Keep the report (a new .json) and a journal.", rich_help_panel=_OUT),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with plots.", rich_help_panel=_OUT)
    ] = None,
    compare: Annotated[
        Path | None, typer.Option(help="An earlier report to compare with.", rich_help_panel=_OUT)
    ] = None,
    read: Annotated[
        Path | None,
        typer.Option("--from", help="Show this report, measure nothing.", rich_help_panel=_OUT),
    ] = None,
    form: Annotated[
        Format, typer.Option("--format", help="Standard output.", rich_help_panel=_OUT)
    ] = Format.TEXT,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    debug: opt.Debug = False,
) -> None:
    """Measure methods against plain decoding, side by side on the same prompts.

    Every prompt is decoded by every method in turn. Ctrl-C stops after the current pass and
    reports what was measured; with --output, --resume goes on from there. Under torchrun every
    process takes a share of the prompts.
    """
    if tp and World.here().alone:
        raise ConfigError(
            "--tp splits the target over several processes, but there is one.",
            "Start it with torchrun --nproc-per-node N -m dartree_core bench --tp ...",
        )
    from dartree_core.bench.compare import read_report
    from dartree_core.bench.datasets import data_folders, load_datasets

    earlier = (read_report(compare), compare.name) if compare is not None else None
    if read is not None:
        if output is not None or (html is not None and html.exists() and html.samefile(read)):
            raise ConfigError(
                "--from shows a report as it is, and keeps no other.",
                "Leave --output out, and give --html a file of its own.",
            )
        shown = Places(None, html)
        shown.check()
        tell(read_report(read), form, earlier, shown)
        return
    places = Places(output, html)
    places.check(resume=resume)
    opt.require_utf8("The system prompt", system or "")
    axes = _axes(
        {
            "budget": budget,
            "width": width,
            "candidates": candidates,
            "block_size": block_size,
            "depth_bonus": depth_bonus,
            "coupled": coupled,
        },
        [*(sweep or ()), *(sweeps or ())],
    )
    named = [m.strip() for m in methods.split(",") if m.strip()] if methods else list(METHODS)
    wanted = variants(named, axes)
    temperatures = list(dict.fromkeys(parse_values("temperature", temperature)))
    data = load_datasets(datasets, folders=data_folders(data_dir or []), limit=limit)
    sampling: dict[str, Any] = {
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "seed": seed,
        "max_new_tokens": max_new_tokens,
        "ignore_eos": ignore_eos,
    }
    _check_settings(wanted, temperatures, sampling)

    from dartree_core.bench.setup import prepare

    models = opt.ModelChoice(
        bundle, target, draft, device, dtype, trust_remote_code, graphs, device_map
    )
    for variant in wanted if methods is not None else ():
        if not variant.is_peer:
            models.check(variant.method)
    decoder = models.load(quiet=quiet)
    if decoder.drafter is None and methods is None:
        wanted = wanted[:1]
    base = opt.decode_config(decoder, **sampling)
    plan = Plan(wanted, {d.name: d.rows for d in data}, temperatures, base, repeat)
    asking = {"raw": raw, "thinking": thinking, "system": system}
    run = prepare(decoder, plan, asking, lambda: _peer_source(models, assistant))
    run.run_code = run_code
    run.max_seconds = None if max_minutes is None else max_minutes * 60
    report = _measure(decoder, run, data, asking, places, resume, quiet, _command(context))
    tell(report, form, earlier, places)
    if run.ended == "interrupted":
        if output is not None and not quiet:
            typer.echo("Go on with the same command and --resume.", err=True)
        raise SystemExit(INTERRUPTED)
    if not report["cases"]:
        raise DARTreeError(
            "The time limit came before the first prompt.", "Give a larger --max-minutes."
        )
    if not any(row["prompts"] for row in report["rows"]):
        raise DARTreeError("No prompt could be decoded.", "The report says why for each of them.")


def _axes(given: dict[str, str | None], sweeps: Sequence[str]) -> dict[str, list[Any]]:
    """Values of every setting: a sweep over an option's."""
    axes = {name: parse_values(name, text) for name, text in given.items() if text is not None}
    return axes | parse_sweeps(sweeps)


def _check_settings(
    wanted: Sequence[Variant], temperatures: Sequence[float], sampling: dict[str, Any]
) -> None:
    """A mistyped setting should not wait for models to load."""
    from dartree_core.config import DecodeConfig

    base = DecodeConfig().with_changes(**opt.given_settings(sampling))
    for variant in wanted:
        for temperature in temperatures:
            variant.config(base, temperature)


def _peer_source(models: opt.ModelChoice, assistant: str | None) -> PeerSource:
    """Where other engines find the same models."""
    from dartree_core.bench.peers import PeerSource
    from dartree_core.bundles import resolve

    code = models.trust_remote_code
    found = resolve(models.bundle, target=models.target, draft=models.draft, trust_remote_code=code)
    helper = None
    if assistant is not None:
        helper = resolve(
            models.bundle, target=assistant, draft="none", trust_remote_code=code
        ).target_path
    return PeerSource(found.target_path, found.draft_path, helper, models.dtype, code)


def _measure(
    decoder: Decoder,
    run: Bench,
    data: Sequence[Dataset],
    asking: dict[str, Any],
    places: Places,
    resume: bool,
    quiet: bool,
    command: str,
) -> dict[str, Any]:
    from dartree_core.bench import environment as env
    from dartree_core.bench.peers import TransformersSpeaker
    from dartree_core.bench.progress import shown
    from dartree_core.bench.report import build
    from dartree_core.bench.run import journal_header
    from dartree_core.bench.shards import Shards
    from dartree_core.bench.stop import on_interrupt
    from dartree_core.engine.defaults import sampling_defaults
    from dartree_core.parallel.group import sharing_group

    sources = {d.name: d.source for d in data}
    facts = env.environment(decoder, asdict(machine.look()), command)
    header = journal_header(run.plan, sources, env.models(decoder), asking)
    group = sharing_group()
    shards = Shards(group)
    shards.begin(run, places.journal, header, resume=resume)
    with shown(quiet) as progress, on_interrupt(run.stop):
        run.progress = progress
        cases = run.run()
    cases = shards.collect(run, cases)
    if not shards.leads:
        raise SystemExit(0)  # the first process reports
    if group is not None:
        facts["processes"] = group.world.size
    facts["peer_dtypes"] = {
        variant.method: speaker.dtype
        for variant in run.plan.variants
        if isinstance(speaker := run.speakers[variant.key], TransformersSpeaker)
    }
    facts["load_average_after"] = env.load_average()
    return build(
        run.plan,
        cases,
        environment=facts,
        sources=sources,
        missing=run.missing,
        ended=run.ended,
        run_code=run.run_code,
        defaults=sampling_defaults(decoder.target.model),
    )


def _command(context: typer.Context) -> str:
    """The command line again, from what click understood of it."""
    words = ["dartree", "bench"]
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is None or source.name != "COMMANDLINE":
            continue
        value = context.params[parameter.name or ""]
        if parameter.param_type_name == "argument":
            words += value
        elif isinstance(value, bool):
            words.append((parameter.opts if value else parameter.secondary_opts)[0])
        else:
            for one in value if isinstance(value, list | tuple) else [value]:
                words += [parameter.opts[-1], str(getattr(one, "value", one))]
    return shlex.join(words)

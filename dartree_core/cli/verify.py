"""`dartree verify`: is an output what plain decoding gives?"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dartree_core.cli import options as opt
from dartree_core.cli.output import Format, print_json
from dartree_core.config import DecodeConfig
from dartree_core.errors import ConfigError, TraceError
from dartree_core.events import RunStarted, TurnFinished, TurnStarted

if TYPE_CHECKING:
    from dartree_core.engine import Decoder


def verify(
    context: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(metavar="[TRACE]", help="A recorded run to check.")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", help="Decode this instead, then check it.")
    ] = None,
    bundle: opt.Bundle = "demo",
    target: opt.Target = None,
    draft: opt.Draft = None,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    device_map: opt.DeviceMap = None,
    trust_remote_code: opt.TrustRemoteCode = False,
    graphs: opt.Graphs = True,
    method: opt.MethodOption = "dartree",
    budget: opt.Budget = "auto",
    width: opt.Width = None,
    temperature: opt.Temperature = None,
    seed: opt.Seed = None,
    max_new_tokens: opt.MaxNewTokens = 256,
    raw: opt.Raw = False,
    output: Annotated[Format, typer.Option("--format", help="How to print.")] = Format.TEXT,
    debug: opt.Debug = False,
) -> None:
    """Score an output again with plain decoding; exit code 1 when they really differ.

    A difference within rounding is reported but not held against the output: in bf16 and fp16
    the shape of a batch changes rounding, here and in every other engine.
    """
    if (file is None) == (prompt is None):
        raise ConfigError(
            "Give either a trace or --prompt.",
            'As in: dartree verify run.jsonl, or: dartree verify --prompt "Hello"',
        )
    given = {
        "method": method,
        "budget": budget,
        "width": width,
        "temperature": temperature,
        "seed": seed,
        "max_new_tokens": max_new_tokens,
    }
    models = opt.ModelChoice(
        bundle, target, draft, device, dtype, trust_remote_code, graphs, device_map
    )
    # Mistakes should not wait for models to load.
    turns: list[RecordedTurn] = []
    if file is not None:
        _refuse_given(context, *given, "raw")
        turns = _read(file)
    elif prompt is not None:
        opt.usable_prompt(prompt)
        DecodeConfig().with_changes(**opt.given_settings(given))
        models.check(method)
    decoder = models.load(quiet=not sys.stderr.isatty())
    if prompt is not None:
        config = opt.decode_config(decoder, **given)
        encoded = decoder.encode(prompt, raw=raw)
        result = decoder.generate(encoded, config)
        turns = [RecordedTurn("", "", encoded.ids, list(result.token_ids), config)]
    reports = [_check(decoder, turn) for turn in turns]
    if output is Format.JSON:
        print_json(reports[0] if len(reports) == 1 else {"turns": reports})
    else:
        for i, report in enumerate(reports):
            _print(report, f"turn {i + 1}: " if len(reports) > 1 else "")
    if any(report["diverged"] for report in reports):
        raise SystemExit(1)


def _refuse_given(context: typer.Context, *names: str) -> None:
    """A trace has decoding settings of its own; others would be ignored."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = name.replace("_", "-")
            raise ConfigError(
                f"--{option} does not apply to a trace, which holds its own settings.",
                "Leave it out, or give --prompt instead of a trace.",
            )


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """What a trace says about one turn."""

    target: str
    dtype: str
    prompt: list[int]
    output: list[int]
    config: DecodeConfig


def _read(file: Path) -> list[RecordedTurn]:
    from dartree_core.trace import TraceReader

    header, started, turns = RunStarted(), None, []
    with TraceReader(file) as reader:
        for event in reader:
            if isinstance(event, RunStarted):
                header = event
            elif isinstance(event, TurnStarted):
                started = event
            elif isinstance(event, TurnFinished) and started is not None:
                turns.append(
                    RecordedTurn(
                        str(header.target.get("name", "")),
                        header.dtype,
                        list(started.prompt_ids),
                        list(event.token_ids),
                        DecodeConfig.from_dict(started.config),
                    )
                )
    if not turns:
        raise TraceError(
            f"{file} holds no finished turn.", "Record one with dartree run --trace FILE."
        )
    return turns


def _check(decoder: Decoder, turn: RecordedTurn) -> dict[str, Any]:
    from dartree_core.engine.rescore import first_real, rescore
    from dartree_core.pieces import TokenTexts

    label = decoder.target.label
    if turn.target and turn.target != label:
        raise ConfigError(
            f"The trace was made by {turn.target}, but {label} is loaded.",
            "Name its models with --bundle or --target.",
        )
    found = rescore(decoder.target, turn.prompt, turn.output, turn.config)
    first = found[0] if found else None
    text = TokenTexts(decoder.tokenizer)
    described = None
    if first is not None:
        described = {
            **asdict(first),
            "token_text": text(first.token).text,
            "expected_text": text(first.expected).text,
        }
    dtype = str(decoder.target.weight_dtype).removeprefix("torch.")
    return {
        "tokens": len(turn.output),
        "dtype": dtype,
        "recorded_dtype": turn.dtype or dtype,
        "identical": not found,
        "diverged": first_real(found) is not None,
        "divergences": len(found),
        "first_divergence": described,
    }


def _print(report: dict[str, Any], prefix: str) -> None:
    first = report["first_divergence"]
    if first is None:
        typer.echo(
            f"{prefix}{report['tokens']} tokens, all as plain decoding chooses ({report['dtype']})."
        )
        return
    verdict = "a real divergence" if report["diverged"] else "within rounding"
    typer.echo(
        f"{prefix}{report['divergences']} of {report['tokens']} tokens differ from plain decoding "
        f"({report['dtype']}): {verdict}.\n"
        f"First at output token {first['index']} (position {first['position']}): "
        f"{first['token_text']!r} ({first['token']}) stands there, plain decoding chooses "
        f"{first['expected_text']!r} ({first['expected']}), ahead by {first['margin']:.6f} logits."
    )
    if report["recorded_dtype"] != report["dtype"]:
        typer.echo(
            f"The run was recorded in {report['recorded_dtype']}; check it with "
            f"--dtype {report['recorded_dtype']}."
        )

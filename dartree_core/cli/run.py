"""`dartree run`: decode one prompt, with figures."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dartree_core.cli import options as opt
from dartree_core.cli.outcome import Outcome
from dartree_core.cli.output import check_writable, print_json
from dartree_core.config import DecodeConfig
from dartree_core.events import Event, TurnFinished

if TYPE_CHECKING:
    from dartree_core.engine import Decoder, Session
    from dartree_core.engine.prompt import Prompt
    from dartree_core.profile.profile import Profile

INTERRUPTED = 130


class Format(StrEnum):
    """What goes to standard output."""

    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"


class Detail(StrEnum):
    """How much every tree records."""

    BASIC = "basic"
    FULL = "full"


def run(
    prompt: Annotated[
        str | None, typer.Argument(metavar="[PROMPT|-]", help="The prompt; - reads stdin.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="Read the prompt from a file.")
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
    candidates: opt.Candidates = None,
    block_size: opt.BlockSize = None,
    depth_bonus: opt.DepthBonus = None,
    coupled: opt.Coupled = True,
    graft: opt.Graft = None,
    temperature: opt.Temperature = None,
    top_k: opt.TopK = None,
    top_p: opt.TopP = None,
    min_p: opt.MinP = None,
    repetition_penalty: opt.RepetitionPenalty = None,
    seed: opt.Seed = None,
    max_new_tokens: opt.MaxNewTokens = 256,
    stop: opt.Stop = None,
    system: opt.System = None,
    raw: opt.Raw = False,
    thinking: opt.Thinking = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="Record every round; .jsonl or .jsonl.gz.")
    ] = None,
    detail: Annotated[
        Detail, typer.Option("--detail", help="full adds ranks and the target's view.")
    ] = Detail.BASIC,
    output: Annotated[
        Format, typer.Option("--format", help="json: one object; jsonl: the event stream.")
    ] = Format.TEXT,
    compare_ar: Annotated[
        bool, typer.Option("--compare-ar", help="Also decode plainly, interleaved; compare.")
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Also say where the time goes, and what limits it.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the answer.")] = False,
    debug: opt.Debug = False,
) -> None:
    """Answer a prompt. Text goes to standard output, figures to standard error."""
    asked = opt.conversation(opt.read_prompt(prompt, file, sys.stdin), system, raw=raw)
    given: dict[str, Any] = {
        "method": method,
        "budget": budget,
        "width": width,
        "candidates": candidates,
        "block_size": block_size,
        "depth_bonus": depth_bonus,
        "coupled": coupled,
        "graft": graft,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "seed": seed,
        "max_new_tokens": max_new_tokens,
        "stop": tuple(stop or ()),
        "detail": detail.value,
    }
    # A mistake should not wait for models to load.
    if trace is not None and (trace.is_dir() or not trace.exists()):
        check_writable(trace, "--trace")
    DecodeConfig().with_changes(**opt.given_settings(given))
    began = time.perf_counter()
    models = opt.ModelChoice(
        bundle, target, draft, device, dtype, trust_remote_code, graphs, device_map
    )
    models.check(method)
    decoder = models.load(quiet=quiet)
    loaded = time.perf_counter() - began
    config = opt.decode_config(decoder, **given)
    encoded = decoder.encode(asked, raw=raw, thinking=thinking)
    if not quiet:
        for warning in (*decoder.notes, *opt.warnings(encoded.template, config, thinking)):
            typer.echo(f"note: {warning}", err=True)
    outcome = _decode(decoder, encoded, config, compare_ar, trace, output, quiet, profile)
    outcome.load_s = loaded
    if output is Format.JSON:
        print_json(outcome.to_dict())
    elif not quiet:
        from dartree_core.cli.report import print_report

        print_report(outcome)
    if outcome.finished.reason == "cancelled":
        raise SystemExit(INTERRUPTED)


def _decode(
    decoder: Decoder,
    prompt: Prompt,
    config: DecodeConfig,
    compare_ar: bool,
    trace: Path | None,
    output: Format,
    quiet: bool,
    profile: bool,
) -> Outcome:
    from dartree_core.engine.interleave import interleave

    outcome = Outcome(config)
    session, plain_session = decoder.session(), decoder.session()
    turns = [decoder.stream(prompt, config, session=session)]
    sessions = [session]
    if compare_ar:
        plain = config.with_changes(method="ar", detail="basic")
        warm_up(decoder, prompt, config, plain)
        turns.append(decoder.stream(prompt, plain, session=plain_session))
        sessions.append(plain_session)
    elif profile:
        warm_up(decoder, prompt, config)
    with ExitStack() as stack:
        listeners = [stack.enter_context(_printer(decoder, output, quiet))]
        if trace is not None:
            listeners.append(stack.enter_context(_recorder(decoder, trace)))
        stack.enter_context(_cancel_on_interrupt(sessions))
        profiled = stack.enter_context(_profiled(decoder)) if profile else None
        for index, event in interleave(turns):
            if profiled is not None:
                profiled.update(event, plain=index == 1)
            if index == 1:
                outcome.plain_running.update(event)
                if isinstance(event, TurnFinished):
                    outcome.plain = event
                continue
            outcome.running.update(event)
            for listener in listeners:
                listener(event)
            if isinstance(event, TurnFinished):
                outcome.finished = event
        if profiled is not None:
            if outcome.finished.reason != "cancelled":
                profiled.step_plainly(prompt, config)
            outcome.profile = profiled.to_dict()
    return outcome


@contextmanager
def _profiled(decoder: Decoder) -> Iterator[Profile]:
    from dartree_core.profile.probe import probing
    from dartree_core.profile.profile import Profile

    with probing(decoder) as probe:
        yield Profile(decoder, probe)


def warm_up(decoder: Decoder, prompt: Prompt, *configs: DecodeConfig) -> None:
    """A few tokens with each setting, so that first-use costs are in neither figure."""
    for config in configs:
        decoder.generate(prompt, config.with_changes(max_new_tokens=8, stop=()))


@contextmanager
def _printer(decoder: Decoder, output: Format, quiet: bool) -> Iterator[Any]:
    from dartree_core.cli.live import PipePrinter, TerminalPrinter

    if output is Format.JSON:
        yield lambda event: None
    elif output is Format.JSONL:
        yield _stream_writer(decoder)
    elif sys.stdout.isatty() and sys.stderr.isatty() and not quiet:
        from rich.console import Console

        with TerminalPrinter(Console()) as terminal:
            yield terminal.show
    else:
        with PipePrinter() as pipe:
            yield pipe.show


def _stream_writer(decoder: Decoder) -> Any:
    from dartree_core.pieces import TokenTexts
    from dartree_core.trace import Recorder

    recorder = Recorder(TokenTexts(decoder.tokenizer))

    def write(event: Event) -> None:
        sys.stdout.buffer.write(recorder.lines(event))
        sys.stdout.buffer.flush()

    return write


@contextmanager
def _recorder(decoder: Decoder, path: Path) -> Iterator[Any]:
    from dartree_core.pieces import TokenTexts
    from dartree_core.trace import TraceWriter

    with TraceWriter(path, TokenTexts(decoder.tokenizer)) as writer:
        yield writer.write


@contextmanager
def _cancel_on_interrupt(sessions: list[Session]) -> Iterator[None]:
    """The first Ctrl-C ends the turn after its current pass; a second one ends the process."""

    def cancel(signum: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for session in sessions:
            session.cancel()

    before = signal.signal(signal.SIGINT, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

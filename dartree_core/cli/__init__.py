"""The `dartree` command. Every command lives in a file of its own and imports torch only when it
runs, so that help is instant."""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer

from dartree_core import __version__
from dartree_core.cli import bench, doctor, models, run, trace, train, verify, worker
from dartree_core.cli.output import tolerate_any_text
from dartree_core.errors import DARTreeError
from dartree_core.parallel.world import World

app = typer.Typer(
    name="dartree",
    help="Lossless speculative decoding with autoregressive draft trees.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(run.run)
app.command()(trace.trace)
app.command()(bench.bench)

app.command()(verify.verify)
app.add_typer(models.app, name="models")
app.add_typer(train.app, name="train")
app.command()(doctor.doctor)
app.command()(worker.worker)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"dartree {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", help="Print the version.", callback=_version, is_eager=True
    ),
) -> None:
    pass


def main(args: list[str] | None = None) -> None:
    """Entry point: run a command; failures say what is wrong and what to do, without traceback.

    `--debug` anywhere on the command line shows the traceback as well.
    """
    words = list(sys.argv[1:] if args is None else args)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    tolerate_any_text()
    _guarded(lambda: _start(words, debug), debug)


def _start(words: list[str], debug: bool) -> None:
    world = World.here()
    if world.alone:
        app(words)
        return
    from dartree_core.parallel.launch import launch

    launch(world, words, lambda: app(words), lambda command: _guarded(command, debug))


def _guarded(command: Callable[[], None], debug: bool) -> None:
    try:
        command()
    except DARTreeError as error:
        if debug:
            raise
        fail(error)
    except Exception as error:
        if debug:
            raise
        fail(
            DARTreeError(
                f"{type(error).__name__}: {error}", "Run again with --debug for the traceback."
            )
        )


def fail(error: DARTreeError) -> None:
    """Print an error as users see it and exit with its code."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, soft_wrap=True)
    console.print(Text.assemble(("error: ", "bold red"), error.message))
    if error.remedy:
        console.print(Text(error.remedy))
    raise SystemExit(error.exit_code)

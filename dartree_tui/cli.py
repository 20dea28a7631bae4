"""`dartree-tui`: command line of the terminal app."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from dartree_core.errors import ConfigError, DARTreeError

if TYPE_CHECKING:
    from dartree_tui.app import DartreeApp
    from dartree_tui.engines import Engine
    from dartree_tui.settings import Settings

_SIZE = re.compile(r"(\d+)x(\d+)")


def parser() -> argparse.ArgumentParser:
    """The options."""
    out = argparse.ArgumentParser(
        prog="dartree-tui",
        description="Chat with a language model and watch its draft trees grow, be pruned and be "
        "verified; or step through the trees of a recorded run.",
        epilog="Settings: DARTREE_TUI_<NAME> in the environment, or the file that "
        "--print-settings describes. f1 shows all keys.",
    )
    out.add_argument("--version", action="store_true", help="print the version")
    models = out.add_argument_group("models")
    models.add_argument("--bundle", metavar="NAME", help="models to load together, such as demo")
    models.add_argument("--target", metavar="MODEL", help="another target: folder, GGUF or hub id")
    models.add_argument("--draft", metavar="MODEL", help="another drafter: folder or hub id")
    models.add_argument("--device", metavar="NAME", help="auto, cpu, cuda, cuda:1, mps")
    models.add_argument("--dtype", metavar="NAME", help="auto, float32, bfloat16, float16")
    models.add_argument(
        "--worker",
        metavar="COMMAND",
        help="run the models elsewhere, as in --worker 'ssh gpu1 dartree worker'",
    )
    models.add_argument("--no-load", action="store_true", help="load nothing until asked to")
    runs = out.add_argument_group("recorded runs")
    runs.add_argument("--replay", metavar="FILE", help="show a trace (.jsonl, .jsonl.gz), or - ")
    runs.add_argument("--record", metavar="FILE", type=Path, help="also write the run as a trace")
    runs.add_argument(
        "--round", metavar="N", type=int, help="show this round first; from 1, as on screen"
    )
    runs.add_argument(
        "--screenshot", metavar="OUT.svg", type=Path, help="render the replay once, and exit"
    )
    runs.add_argument("--size", metavar="WxH", help="size of the screenshot, 120x40 by default")
    look = out.add_argument_group("looks and files")
    look.add_argument("--theme", metavar="NAME", help="a theme's name")
    look.add_argument("--settings", metavar="FILE", type=Path, help="another settings file")
    look.add_argument(
        "--print-settings", action="store_true", help="print all settings as a file, and exit"
    )
    serve = out.add_argument_group("in a browser")
    serve.add_argument("--serve", action="store_true", help="serve the app over HTTP")
    serve.add_argument("--host", default="localhost", help="with --serve: address to listen at")
    serve.add_argument("--port", type=int, default=8000, help="with --serve: port to listen at")
    out.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    return out


def main(argv: Sequence[str] | None = None) -> None:
    """Run `dartree-tui`. Exits with 2 on wrong usage and 1 on failures."""
    given = sys.argv[1:] if argv is None else list(argv)
    options = parser().parse_args(given)
    try:
        _run(options, given)
    except DARTreeError as error:
        if options.debug:
            raise
        print(f"dartree-tui: {error.message}", file=sys.stderr)
        if error.remedy:
            print(f"  {error.remedy}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _run(options: argparse.Namespace, given: list[str]) -> None:
    if options.version:
        from dartree_core import __version__

        print(f"dartree-tui {__version__}")
        return
    settings = _settings(options)
    if options.print_settings:
        from dartree_tui.settings import settings_path, to_toml

        print(f"# {options.settings or settings_path()}")
        print(to_toml(settings), end="")
        return
    _check(options)
    if options.serve:
        _serve(options, given)
        return
    stream = _take_stdin() if options.replay == "-" else None
    app = _app(options, settings, stream)
    if options.screenshot is not None:
        from dartree_tui.screenshot import render

        render(app, options.screenshot, _size(options.size or "120x40"), options.round)
        return
    app.start_round = options.round
    try:
        app.run()
    finally:
        app.client.close()
    if app.return_code:
        raise SystemExit(app.return_code)


def _settings(options: argparse.Namespace) -> Settings:
    """The settings file and environment, with the command line over them."""
    from dartree_tui.settings import load_settings

    settings = load_settings(options.settings)
    names = ("bundle", "target", "draft", "device", "dtype", "worker")
    engine = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if options.no_load:
        engine["load_at_start"] = False
    if engine:
        settings = settings.changed("engine", **engine)
    if options.theme is not None:
        settings = settings.changed("ui", theme=options.theme)
    return settings


def _check(options: argparse.Namespace) -> None:
    if options.settings is not None and not options.settings.is_file():
        raise ConfigError(
            f"There is no settings file {options.settings}.",
            f"Make one with: dartree-tui --print-settings > {options.settings}",
        )
    if options.replay is None:
        for name in ("screenshot", "round"):
            if getattr(options, name) is not None:
                raise ConfigError(
                    f"--{name} shows a recorded run, but none is given.", "Add --replay FILE."
                )
    if options.replay is not None and options.record is not None:
        raise ConfigError("--record cannot record a replay.", "Copy the trace instead.")
    if options.round is not None and options.round < 1:
        raise ConfigError(f"--round is {options.round}.", "Rounds are counted from 1.")
    if options.size is not None:
        _size(options.size)
    if options.serve and (options.replay == "-" or options.screenshot is not None):
        raise ConfigError("--serve takes neither --replay - nor --screenshot.", "Leave it out.")


def _size(text: str) -> tuple[int, int]:
    match = _SIZE.fullmatch(text)
    if match is None or not (20 <= int(match[1]) <= 500 and 8 <= int(match[2]) <= 300):
        raise ConfigError(f"--size is {text!r}.", "Give columns and rows, such as 120x40.")
    return int(match[1]), int(match[2])


def _app(options: argparse.Namespace, settings: Settings, stream: IO[bytes] | None) -> DartreeApp:
    from dartree_tui.app import DartreeApp
    from dartree_tui.history import History, history_path

    launcher = None
    if options.replay is not None:
        from dartree_tui.engines.replay import ReplayEngine

        engine = ReplayEngine(stream or Path(options.replay))  # type: ignore[arg-type]

        def make() -> Engine:
            return engine
    else:
        from dartree_tui.engines.process import ProcessEngine
        from dartree_tui.priority import Launcher

        launcher = Launcher()

        def make() -> Engine:
            return ProcessEngine(settings.engine.worker, launch=launcher)

    app = DartreeApp(
        make,
        settings,
        record=options.record,
        history=History(history_path()),
        settings_file=options.settings,
    )
    if launcher is not None:
        launcher.step_back()
    return app


def _take_stdin() -> IO[bytes]:
    """The pipe on stdin, with the terminal put in its place for the keyboard."""
    if sys.stdin.isatty():
        raise ConfigError(
            "--replay - reads a trace from a pipe, but stdin is a terminal.",
            "Pipe one in, as in: dartree run ... --format jsonl | dartree-tui --replay -",
        )
    pipe = os.fdopen(os.dup(0), "rb")
    try:
        terminal = os.open("/dev/tty" if os.name == "posix" else "CONIN$", os.O_RDONLY)
    except OSError:
        return pipe  # no terminal at all: a screenshot still works
    os.dup2(terminal, 0)
    os.close(terminal)
    return pipe


def _serve(options: argparse.Namespace, given: list[str]) -> None:
    import shlex

    from textual_serve.server import Server

    skip = {"--serve", "--host", "--port"}
    rest: list[str] = []
    words = iter(given)
    for word in words:
        name, has_value, _ = word.partition("=")
        if name in skip:
            if name != "--serve" and not has_value:
                next(words, None)
            continue
        rest.append(word)
    command = shlex.join([sys.executable, "-m", "dartree_tui", *rest])
    Server(command, host=options.host, port=options.port, title="dartree").serve()

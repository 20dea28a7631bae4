"""A command under torchrun: which ranks run it, which follow, and how all of them end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Literal, NoReturn

from dartree_core.errors import ConfigError, DARTreeError
from dartree_core.parallel.world import World

Role = Literal["tensor", "share", "first"]

_TENSOR = ("run", "verify", "worker")


def role_of(words: Sequence[str]) -> Role:
    """What a command line means for several processes.

    `tensor`: rank 0 runs it on a target that all hold together. `share`: all run it, each on its
    part. `first`: help and the like, for rank 0 only.

    Raises:
        ConfigError: The command uses one process only.
    """
    command = [word for word in words if not word.startswith("-")]
    if not command or {"-h", "--help", "--version"} & set(words):
        return "first"
    if command[0] in _TENSOR:
        return "tensor"
    if command[0] == "bench":
        return "tensor" if "--tp" in words else "share"
    if command[:2] == ["train", "drafter"]:
        return "share"
    named = " ".join(command[: 2 if command[0] in ("train", "models") else 1])
    raise ConfigError(
        f"dartree {named} uses one process, but torchrun started several.",
        "Start it without torchrun.",
    )


def launch(
    world: World,
    words: Sequence[str],
    command: Callable[[], None],
    tell: Callable[[Callable[[], None]], None],
) -> None:
    """Run a command as one of several processes.

    Args:
        world: This process.
        words: The command line.
        command: Runs it, and raises.
        tell: Runs what it is given and tells the user of failures, which end in `SystemExit`.

    Raises:
        ConfigError: The command uses one process only; raised in rank 0.
        SystemExit: A rank other than 0 was started for nothing.
    """
    try:
        role = role_of(words)
    except ConfigError:
        if world.leads:
            raise
        raise SystemExit(ConfigError.exit_code) from None
    if role == "first":
        if world.leads:
            tell(command)
        return
    from dartree_core.parallel.group import Group

    group = Group.join(world, role)
    if world.leads:
        code = _code(lambda: tell(lambda: _patient(command, group.watch.is_it_another)))
        code = group.leave(code)
        if code:
            # Native threads may still wait for ranks that will not answer any more.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        return
    os.dup2(2, 1)  # standard output is rank 0's alone, whoever prints
    if role == "tensor":
        from dartree_core.parallel.follow import follow

        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is rank 0's to hear
        follow(group)
    else:
        group.watch.interrupts = True
        _help(group.watch.fail, command, lambda: group.leave(0))


def tell_faults(listener: Callable[[str, str], None]) -> None:
    """Tell `listener` message and remedy when a rank is lost, before this process ends."""
    if not World.here().alone:
        from dartree_core.parallel.group import current

        group = current()
        if group is not None:
            group.watch.on_fault = listener


def end_process(code: int) -> NoReturn:
    """End this process at once, from any thread, and with it the others of its group."""
    if not World.here().alone:
        from dartree_core.parallel.group import current

        group = current()
        if group is not None:
            code = group.watch.finish(code)
    os._exit(code)


def _patient(command: Callable[[], None], wait: Callable[[], None]) -> None:
    """Run a command; errors that may be another rank's wait until that is known."""
    try:
        command()
    except DARTreeError:
        raise
    except Exception:
        wait()
        raise


def _help(
    fail: Callable[[str, str], None], command: Callable[[], None], leave: Callable[[], object]
) -> None:
    """Run a command beside rank 0, silently: what users should know, rank 0 says."""
    silence = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stdout = sys.stderr = silence
    try:
        code = _code(command)
    except DARTreeError as error:
        fail(f"failed: {error.message}", error.remedy)
    except Exception as error:
        from dartree_core.parallel.sharded import explain

        fail(*explain(error))
    else:
        if code not in (0, 130):
            fail(f"ended with exit code {code}.", "What rank 0 says may tell why.")
        leave()


def _code(command: Callable[[], None]) -> int:
    """Run a command; its exit code."""
    try:
        command()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return 0

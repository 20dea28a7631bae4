"""What watching costs: decode speed with the terminal app around the worker, and without it.

    python benchmarks/view_cost.py                     # about five minutes on two cores
    python benchmarks/view_cost.py --methods ar --pairs 8 --size 80x24
    python benchmarks/view_cost.py --against worker    # the drawing alone

Two workers with the same models answer the same question in turn. One is driven over its pipes by
a program that reads and forgets, with the detail `dartree run` decodes with: rounds as they end,
without what the target thought of their nodes. With `--against worker` it tells as much as the
app asks for: trees in full detail, the stages of some. The other worker belongs to a real
`dartree-tui` in a pseudo-terminal, which is stopped while it is not its turn. Both workers
time themselves, from the end of the prefill to the end of the turn. Exits with 1 when the app
costs more than the limit, and with 3 when so many pairs cannot tell on so busy a machine. POSIX
only; CPU seconds need Linux's /proc.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import math
import os
import pty
import shlex
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dartree_tui.pace import glance_seconds

if TYPE_CHECKING:
    from dartree_core.config import DecodeConfig

QUESTION = "Write a long story about a lighthouse keeper and a storm, with many details."
LIMIT = 0.05
PATIENCE = 120.0


class Journal:
    """What a worker notes down about itself, line by line, while we wait for more."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._at = 0

    def next(self, kind: str) -> dict[str, Any]:
        """The next note of a kind; notes before it are dropped.

        Raises:
            SystemExit: none came for a long time.
        """
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            data = self.path.read_bytes() if self.path.exists() else b""
            while (end := data.find(b"\n", self._at)) >= 0:
                note = json.loads(data[self._at : end])
                self._at = end + 1
                if note["kind"] == kind:
                    return dict(note)
            time.sleep(0.05)
        raise SystemExit(f"No {kind} from the worker for {PATIENCE:.0f} s.")


def serve(journal: str) -> None:
    """A worker that times its own turns and its own writing."""
    from dartree_core.cli import worker
    from dartree_core.events import Event, PrefillDone, RoundDone, TurnFinished
    from dartree_core.worker_protocol import Reply

    class Timed(worker.Output):
        began = writing = 0.0
        rounds = tokens = 0

        def emit(self, record: Event | Reply) -> None:
            began = time.perf_counter()
            super().emit(record)
            now = time.perf_counter()
            self.writing += now - began
            match record:
                case PrefillDone():
                    self.began, self.writing, self.rounds, self.tokens = now, 0.0, 0, 0
                case RoundDone():
                    self.rounds += 1
                    self.tokens += len(record.tokens)
                case TurnFinished():
                    self.note(
                        kind="turn",
                        tokens=self.tokens,
                        rounds=self.rounds,
                        seconds=began - self.began,
                        writing=self.writing,
                    )
                case Reply():
                    self.note(kind=record.op, ok=record.ok, message=record.message)
                case _:
                    pass

        def note(self, **fields: Any) -> None:
            with open(journal, "a", encoding="utf-8") as out:
                out.write(json.dumps(fields) + "\n")

    worker.Output = Timed  # type: ignore[misc]
    worker.serve()


class Headless:
    """A worker driven over its pipes."""

    def __init__(self, command: list[str], journal: Path, env: Mapping[str, str]) -> None:
        self.journal = Journal(journal)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(env),
            start_new_session=True,  # as the app starts its own: schedulers share by session
        )
        threading.Thread(target=self._drain, daemon=True).start()
        self._send("load", bundle="demo")

    def _drain(self) -> None:
        assert self._process.stdout is not None
        while os.read(self._process.stdout.fileno(), 1 << 16):
            pass

    def _send(self, op: str, **fields: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"op": op, "id": 1, **fields}).encode() + b"\n")
        self._process.stdin.flush()

    def turn(self, config: DecodeConfig) -> dict[str, Any]:
        """One answer, in a conversation of its own; stages are told as seldom as to the app."""
        messages = [{"role": "user", "content": QUESTION}]
        self._send("reset")
        self.journal.next("reset")
        glance = glance_seconds(shared=True)
        self._send("generate", prompt=messages, config=config.to_dict(), glance_seconds=glance)
        note = self.journal.next("turn")
        self.journal.next("generate")
        return note

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class Watched:
    """The same behind the app, in a terminal of its own."""

    def __init__(
        self, command: list[str], journal: Path, env: Mapping[str, str], size: tuple[int, int]
    ) -> None:
        self.journal = Journal(journal)
        self.painted = 0
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        app = [sys.executable, "-m", "dartree_tui", "--worker", shlex.join(command)]
        self._process = subprocess.Popen(
            app,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**env, "TERM": "xterm-256color", "COLORTERM": "truecolor"},
            start_new_session=True,
        )
        os.close(slave)
        threading.Thread(target=self._drain, daemon=True).start()

    def _drain(self) -> None:
        with contextlib.suppress(OSError):  # the other end is gone
            while data := os.read(self._master, 1 << 16):
                self.painted += len(data)

    def _type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def stop(self) -> None:
        """Hold the app; its worker is idle and in a session of its own."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def turn(self) -> dict[str, Any]:
        """One answer, typed and watched, in a conversation of its own."""
        os.kill(self._process.pid, signal.SIGCONT)
        self._type("\x0e")  # ctrl+n
        self.journal.next("reset")
        self._type(QUESTION)
        time.sleep(0.5)
        self._type("\r")
        before, began, cpu = self.painted, time.monotonic(), self._cpu()
        note = self.journal.next("turn")
        self.journal.next("generate")
        seconds = time.monotonic() - began
        note["ui"] = (self._cpu() - cpu) / seconds * 10
        note["painted"] = (self.painted - before) / seconds
        time.sleep(0.5)  # let it paint the end
        self.stop()
        return note

    def _cpu(self) -> float:
        """User and system seconds of the app itself, all of its threads."""
        try:
            stat = Path(f"/proc/{self._process.pid}/stat").read_text()
        except OSError:
            return float("nan")
        fields = stat.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)
        self._type("\x11")  # ctrl+q
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._master)


def environment(home: Path, method: str, options: argparse.Namespace) -> dict[str, str]:
    """Settings that both sides share, and a home without the user's own."""
    from dartree_core.bundles import cache

    env = dict(os.environ)
    env |= {cache.ENV: str(cache.home()), "HOME": str(home)}
    env |= {f"XDG_{n}_HOME": str(home / n.lower()) for n in ("CONFIG", "DATA", "STATE", "CACHE")}
    settings = {
        "method": method,
        "budget": options.budget,
        "temperature": 0,
        "max_new_tokens": options.tokens,
        "calibrate": "false",
    }
    env |= {f"DARTREE_TUI_{name.upper()}": str(value) for name, value in settings.items()}
    # Each worker would choose its number of threads by what it measures; both must have the same.
    env["OMP_NUM_THREADS"] = str(options.threads)
    return env


def measure(method: str, options: argparse.Namespace) -> list[tuple[dict[str, Any], ...]]:
    """Pairs of turns, without the app and with it; who goes first changes."""
    from dartree_tui.settings import load_settings

    with tempfile.TemporaryDirectory(prefix="view-cost-") as folder:
        home = Path(folder)
        env = environment(home, method, options)
        config = load_settings(home / "none.toml", env).decode.to_config()
        if options.against == "headless":
            config = config.with_changes(stages=False, detail="basic")
        commands = [
            [sys.executable, str(Path(__file__).resolve()), "--as-worker", str(home / name)]
            for name in ("headless", "watched")
        ]
        bare = Headless(commands[0], home / "headless", env)
        app = Watched(commands[1], home / "watched", env, options.size)
        try:
            for side in (bare, app):
                note = side.journal.next("load")
                if not note["ok"]:
                    raise SystemExit(f"The models do not load: {note['message']}")
            # The app's first turn is part of its cost.
            bare.turn(config.with_changes(max_new_tokens=8))
            time.sleep(0.5)
            app.stop()
            return list(_pairs(bare, app, config, options))
        finally:
            app.close()
            bare.close()


def _pairs(
    bare: Headless, app: Watched, config: DecodeConfig, options: argparse.Namespace
) -> Iterator[tuple[dict[str, Any], ...]]:
    deadline = time.monotonic() + options.seconds
    for i in range(options.pairs):
        if i >= 3 and time.monotonic() > deadline:
            return
        if i % 2:
            watched, alone = app.turn(), bare.turn(config)
        else:
            alone, watched = bare.turn(config), app.turn()
        if alone["tokens"] != watched["tokens"]:
            raise SystemExit("The two sides wrote different answers; they are not comparable.")
        yield alone, watched


def report(method: str, pairs: list[tuple[dict[str, Any], ...]], size: tuple[int, int]) -> str:
    """Print what was measured; return the verdict."""
    speeds = [
        [note["tokens"] / note["seconds"] for note in side] for side in zip(*pairs, strict=True)
    ]
    losses = [1 - watched / alone for alone, watched in zip(*speeds, strict=True)]
    watched = [pair[1] for pair in pairs]
    loss = statistics.median(losses)
    first = pairs[0][1]
    print(
        f"\n{method}, {first['tokens']} tokens in {first['rounds']} rounds, {len(pairs)} pairs, "
        f"app at {size[0]}x{size[1]}"
    )
    print(f"  worker alone     {_spread(speeds[0], '.1f')} tokens/s")
    print(f"  with the app     {_spread(speeds[1], '.1f')} tokens/s")
    print(f"  lost to the app  {_spread([100 * x for x in losses], '.1f')} %")
    print(f"  app's CPU        {_spread([n['ui'] for n in watched], '.2f')} s per 10 s")
    print(f"  app paints       {_spread([n['painted'] / 1e3 for n in watched], '.1f')} kB/s")
    for name, side in (("alone", 0), ("with the app", 1)):
        writing = [1e3 * pair[side]["writing"] / pair[side]["rounds"] for pair in pairs]
        print(f"  worker writes, {name:<12} {_spread(writing, '.2f')} ms a round")
    low, high = interval_of_median(losses)
    word = "OK" if high <= LIMIT else "TOO SLOW" if low > LIMIT else "UNCLEAR"
    print(
        f"  {word}: the app costs {100 * loss:.1f} % of decoding speed, in 19 of 20 such runs "
        f"{100 * low:.1f} to {100 * high:.1f} %; limit {100 * LIMIT:.0f} %"
    )
    if word == "UNCLEAR":
        print(
            "  The machine is not quiet enough for so few pairs: run more, when nothing else does."
        )
    return word


def interval_of_median(values: list[float]) -> tuple[float, float]:
    """Between which of the values the median of all that could be measured lies, in 95% of cases.

    By the binomial distribution of how many values fall below it, so whatever theirs is. With
    fewer than six values there is no such interval, and anything is possible.
    """
    count, ordered = len(values), sorted(values)
    outside, beyond = 0, 0.0
    while (beyond := beyond + math.comb(count, outside) / 2**count) <= 0.025:
        outside += 1
    if not outside:
        return -math.inf, math.inf
    return ordered[outside - 1], ordered[count - outside]


def _spread(values: list[float], form: str) -> str:
    low, high = min(values), max(values)
    return f"{statistics.median(values):{form}}  ({low:{form}} to {high:{form}})"


def _size(text: str) -> tuple[int, int]:
    width, _, height = text.partition("x")
    return int(width), int(height)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--methods", default="ar,dartree", help="what to decode with")
    parser.add_argument("--pairs", type=int, default=20, help="pairs of turns for each method")
    parser.add_argument("--seconds", type=float, default=150, help="stop after so long, each")
    parser.add_argument("--tokens", type=int, default=160, help="length of an answer")
    parser.add_argument("--budget", type=int, default=12, help="nodes of a tree")
    parser.add_argument(
        "--against", choices=("headless", "worker"), default="headless", help="compared with what"
    )
    parser.add_argument("--size", type=_size, default=(120, 40), help="the terminal's, 120x40")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of each worker")
    parser.add_argument("--as-worker", metavar="JOURNAL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_worker:
        serve(options.as_worker)
    verdicts = [
        report(method, measure(method, options), options.size)
        for method in options.methods.split(",")
    ]
    raise SystemExit(1 if "TOO SLOW" in verdicts else 3 if "UNCLEAR" in verdicts else 0)


if __name__ == "__main__":
    main()

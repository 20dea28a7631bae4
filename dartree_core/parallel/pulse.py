"""What every process of a group says of itself four times a second, and what its silence means."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from dartree_core.parallel.world import hostname

State = Literal["running", "stopped", "gone", "unknown"]


@dataclass(frozen=True, slots=True)
class Pulse:
    """One process at one moment.

    Attributes:
        host, pid: Where it is.
        beat: Counts up as long as the process lives.
        passes: Joint passes entered so far.
        busy: Seconds it has been in the pass it is in, or 0 outside of one.
    """

    host: str
    pid: int
    beat: int = 0
    passes: int = 0
    busy: float = 0.0

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Pulse:
        """Inverse of `to_json`."""
        return cls(**json.loads(text))


class Heart:
    """This process's own pulse."""

    def __init__(self) -> None:
        self._host, self._pid = hostname(), os.getpid()
        self._beat = 0
        self._passes = 0
        self._since: float | None = None

    def enter(self) -> None:
        """A joint pass begins."""
        self._passes += 1
        self._since = time.monotonic()

    def leave(self) -> None:
        """The joint pass is over."""
        self._since = None

    def pulse(self) -> Pulse:
        """The next pulse."""
        self._beat += 1
        since = self._since
        busy = 0.0 if since is None else time.monotonic() - since
        return Pulse(self._host, self._pid, self._beat, self._passes, round(busy, 2))


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a process may be quiet before it counts as lost, in seconds.

    Attributes:
        stopped: When the system says that it is suspended.
        silent: Without any sign of life; a long load holds Python's lock for a while.
        stalled: In one joint pass.
    """

    stopped: float = 2.0
    silent: float = 30.0
    stalled: float = 120.0


@dataclass(frozen=True, slots=True)
class Lost:
    """A process that others should not wait for.

    Attributes:
        rank: Which.
        message: What is wrong, naming rank, machine and process.
        remedy: What to do.
        pid: The process, where it is on this machine and may still be there; else 0.
    """

    rank: int
    message: str
    remedy: str
    pid: int = 0


class Listener:
    """Judges the pulses of a group.

    Args:
        patience: How long to wait.
        state: Looks at a process of this machine.
        clock: Seconds.
    """

    def __init__(
        self,
        patience: Patience | None = None,
        state: Callable[[int], State] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._patience = patience or Patience()
        self._state = state or process_state
        self._clock = clock
        self._heard: dict[int, tuple[Pulse, float]] = {}

    def hear(self, rank: int, pulse: Pulse) -> None:
        """Take a pulse, new or the last one again."""
        before = self._heard.get(rank)
        if before is None or before[0].beat != pulse.beat:
            self._heard[rank] = (pulse, self._clock())

    def forget(self, rank: int) -> None:
        """A process has left, or has not come yet."""
        self._heard.pop(rank, None)

    def lost(self) -> Lost | None:
        """The process that is lost, or None while all are well."""
        now = self._clock()
        for rank, (pulse, since) in sorted(self._heard.items()):
            found = self._judge(rank, pulse, now - since)
            if found is not None:
                return found
        return self._stalled()

    def _judge(self, rank: int, pulse: Pulse, silent: float) -> Lost | None:
        who = name(rank, pulse)
        here = _here(pulse)
        state: State = self._state(here) if here else "unknown"
        if state == "gone":
            return Lost(
                rank,
                f"{who} has died.",
                "When the system ran out of memory it killed it (dmesg says so): give it a "
                "smaller model or dtype, or more processes.",
            )
        if state == "stopped" and silent > self._patience.stopped:
            return Lost(
                rank,
                f"{who} is suspended and has not answered for {silent:.0f} s.",
                "Somebody sent it SIGSTOP or a debugger holds it; start again.",
                here,
            )
        if silent > self._patience.silent:
            return Lost(
                rank,
                f"{who} has not answered for {silent:.0f} s.",
                "Its machine may be down, swapping or unreachable; look there, then start again.",
                here,
            )
        return None

    def _stalled(self) -> Lost | None:
        pulses = {rank: pulse for rank, (pulse, _) in self._heard.items()}
        longest = max(pulses, key=lambda r: pulses[r].busy, default=None)
        if longest is None or pulses[longest].busy <= self._patience.stalled:
            return None
        # Whoever has entered fewer passes than the others keeps them waiting.
        behind = min(pulses, key=lambda r: pulses[r].passes)
        if pulses[behind].passes == pulses[longest].passes:
            behind = longest
        return Lost(
            behind,
            f"{name(behind, pulses[behind])} hangs: a joint pass has not ended for "
            f"{pulses[longest].busy:.0f} s.",
            "Check the connection between the devices (NCCL_DEBUG=INFO tells), then start again.",
            _here(pulses[behind]),
        )


def _here(pulse: Pulse) -> int:
    """The process's number, or 0 when it is on another machine."""
    return pulse.pid if pulse.host == hostname() else 0


def name(rank: int, pulse: Pulse) -> str:
    """A process as people can find it."""
    return f"Rank {rank} ({pulse.host}, process {pulse.pid})"


def process_state(pid: int, proc: Path = Path("/proc")) -> State:
    """What this machine's system says of one of its processes."""
    if not proc.is_dir():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return "gone"
        except OSError:
            return "unknown"
        return "running"
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return "gone"
    except OSError:
        return "unknown"
    letter = text.rpartition(")")[2].split()[:1]
    if letter in (["Z"], ["X"]):
        return "gone"
    return "stopped" if letter in (["T"], ["t"]) else "running"

"""Recording and replaying of static passes: CUDA graphs, or plain calls where there are none.

A *body* is a function without arguments that reads and writes tensors at fixed addresses and
nothing else: no host value that changes between calls may enter it, and whatever it computes it
copies into tensors that outlive it. Running a body twice gives what running it once gives. So a
body may be called as it is (CPU, `--no-graphs`), or recorded once and replayed: one launch
instead of several hundred.

Graphs share one memory pool for what bodies allocate in passing. That is safe because results
never live in the pool and all replays are queued on one stream.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Protocol, TypeAlias

import torch

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)

ENV = "DARTREE_GRAPHS"
"""Environment variable: 0 turns graphs off."""
_OFF = {"0", "false", "no", "off"}
_MOST = 192
"""Graphs one tape holds; the oldest go first."""
_WARM_UPS = 2
"""Runs before recording: libraries pick algorithms and allocate workspaces in the first."""

Body: TypeAlias = "Callable[[], object]"


class Recorder(Protocol):
    """Turns a body into something that repeats its device work."""

    def record(self, body: Body) -> Callable[[], None]:
        """Warm `body` up, record it, and return what replays it.

        Raises:
            RuntimeError: The body does something that cannot be recorded.
        """

    def run(self, body: Body) -> None:
        """Run `body` as it is, where its recording would have run."""

    def settle(self) -> None:
        """Wait for queued replays, so that recordings may be dropped."""


class CudaRecorder:
    """Records on a side stream, into a memory pool that all its graphs share.

    Args:
        device: The CUDA device bodies run on.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        with torch.cuda.device(device):
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self._pool = torch.cuda.graph_pool_handle()

    def record(self, body: Body) -> Callable[[], None]:
        """See `Recorder.record`; torch's rules for capture are in its note on CUDA graphs."""
        with torch.cuda.device(self.device):
            side, main = self._stream, torch.cuda.current_stream()
            side.wait_stream(main)
            # A failed capture leaves torch.cuda.graph without restoring the stream; this does.
            with torch.cuda.stream(side):
                for _ in range(_WARM_UPS):
                    body()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(
                    graph, pool=self._pool, stream=side, capture_error_mode="thread_local"
                ):
                    body()
            main.wait_stream(side)
        return graph.replay

    def run(self, body: Body) -> None:
        """See `Recorder.run`; Triton launches on the current device, whatever its arguments."""
        with torch.cuda.device(self.device):
            body()

    def settle(self) -> None:
        """See `Recorder.settle`."""
        torch.cuda.synchronize(self.device)


class Tape:
    """The recordings made for one set of addresses; they are void where one of them moves.

    Attributes:
        held: Tensors that bodies read although nothing else may hold on to them.
    """

    def __init__(self) -> None:
        self.held: list[Tensor] = []
        self.replays: dict[Hashable, Callable[[], None]] = {}

    def hold(self, *tensors: Tensor) -> None:
        """Keep these alive as long as the recordings."""
        self.held += [t for t in tensors if not any(t is known for known in self.held)]


class Graphs:
    """Runs bodies: recorded where possible, else plainly.

    Args:
        recorder: Records bodies; None runs them as they are.

    Attributes:
        failures: Kinds of bodies whose recording was given up, and why.
        recorded: Recordings made so far.
        replayed: Replays so far.
    """

    def __init__(self, recorder: Recorder | None = None) -> None:
        self._recorder = recorder
        self.failures: dict[str, str] = {}
        self.recorded = 0
        self.replayed = 0

    @classmethod
    def on(cls, device: torch.device) -> Graphs:
        """Graphs for a device: recorded on CUDA, plain calls elsewhere."""
        return cls(CudaRecorder(device) if device.type == "cuda" else None)

    def recording(self, kind: str) -> bool:
        """True while bodies of this kind are recorded."""
        return self._recorder is not None and kind not in self.failures

    def run(self, tape: Tape, kind: str, shape: Hashable, body: Body) -> None:
        """Do what `body` does.

        Args:
            tape: Where the recording is kept.
            kind: What the body is, for messages; kinds that cannot be recorded run plainly.
            shape: Everything that shapes the body's work; the same kind and shape must mean the
                same work on the same addresses.
            body: See the module.
        """
        recorder = self._recorder
        if recorder is None:
            body()
            return
        if kind in self.failures:
            recorder.run(body)
            return
        key = (kind, shape)
        replay = tape.replays.get(key)
        if replay is None:
            try:
                replay = recorder.record(body)
            except RuntimeError as error:
                self._give_up(kind, error)
                recorder.run(body)
                return
            self.recorded += 1
            if len(tape.replays) >= _MOST:
                recorder.settle()
                del tape.replays[next(iter(tape.replays))]
            tape.replays[key] = replay
        self.replayed += 1
        replay()

    def settle(self) -> None:
        """Wait until recordings and what they touch may be dropped."""
        if self._recorder is not None:
            self._recorder.settle()

    def _give_up(self, kind: str, error: RuntimeError) -> None:
        lines = str(error).strip().splitlines()
        self.failures[kind] = lines[0] if lines else type(error).__name__
        log.warning(
            "CUDA graphs are off for every %s of this run, which makes rounds slower: recording "
            "one failed (%s). Set %s=0 to start without graphs.",
            kind,
            self.failures[kind],
            ENV,
        )

    def __str__(self) -> str:
        return "static shapes" if self._recorder is None else "graphs"


def wanted(device: torch.device, asked: bool | None = None) -> bool:
    """Whether static passes should be used: on CUDA, unless told otherwise.

    Args:
        device: Where the target runs.
        asked: What the user said; None leaves it to the environment and the device.
    """
    if asked is not None:
        return asked
    return device.type == "cuda" and os.environ.get(ENV, "").strip().lower() not in _OFF

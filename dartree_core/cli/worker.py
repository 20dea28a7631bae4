"""`dartree worker`: the engine behind the terminal app, here or at the far end of an ssh."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from dartree_core.cli import options as opt
from dartree_core.events import Event, LoadProgress, RunFailed
from dartree_core.parallel.launch import end_process, tell_faults
from dartree_core.pieces import TokenTexts
from dartree_core.trace import Recorder, to_line
from dartree_core.worker import EXIT_GRACE, Worker
from dartree_core.worker_protocol import Load, Reply, encode_reply

if TYPE_CHECKING:
    from dartree_core.engine import Decoder


class Output:
    """The one way onto the worker's stdout, whole lines at a time, from any thread."""

    def __init__(self, pipe: BinaryIO) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()
        self._recorder = Recorder(TokenTexts(None))

    def speak_of(self, tokenizer: Any) -> None:
        """Name tokens by this tokenizer, all of them anew."""
        with self._lock:
            self._recorder = Recorder(TokenTexts(tokenizer))

    def emit(self, record: Event | Reply) -> None:
        """Write a record. A reader that is gone ends the process: nobody is left to work for."""
        with self._lock:
            if isinstance(record, Reply):
                lines = to_line(encode_reply(record))
            else:
                lines = self._recorder.lines(record)
            try:
                self._pipe.write(lines)
                self._pipe.flush()
            except OSError:
                end_process(0)


def take_stdout() -> BinaryIO:
    """Our own handle on stdout; whoever prints from now on, in any language, writes on stderr."""
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return pipe


def loader(
    output: Output, device_map: str | None = None
) -> Callable[..., tuple[Decoder, dict[str, Any]]]:
    """A loader for `Worker`; torch is imported when it is first called.

    Args:
        output: Told of the tokenizer.
        device_map: For every target; see `load_placed`.
    """

    def load(
        request: Load, report: Callable[[LoadProgress], None]
    ) -> tuple[Decoder, dict[str, Any]]:
        report(LoadProgress("starting torch", 0, 0, "steps"))
        from dartree_core.bundles import load as load_bundle

        decoder = load_bundle(
            request.bundle,
            target=request.target,
            draft=request.draft,
            device=request.device,
            dtype=request.dtype,
            device_map=device_map,
            trust_remote_code=request.trust_remote_code,
            progress=lambda *step: report(LoadProgress(*step)),
        )
        output.speak_of(decoder.tokenizer)
        return decoder, _facts(decoder)

    return load


def _facts(decoder: Decoder) -> dict[str, Any]:
    """The models, as `RunStarted` will tell of them, and how the target asks to be sampled."""
    from dartree_core.engine.defaults import sampling_defaults
    from dartree_core.engine.describe import drafter_facts, target_facts

    sampling = asdict(sampling_defaults(decoder.target.model))
    del sampling["seed"]  # the user's, not the model's
    return {
        "bundle": decoder.bundle,
        "target": target_facts(decoder.target),
        "drafter": drafter_facts(decoder.drafter),
        "device": str(decoder.target.device),
        "dtype": str(decoder.target.weight_dtype).removeprefix("torch."),
        "sampling": sampling,
    }


def serve(device_map: str | None = None) -> NoReturn:
    """Serve stdin until it ends, then end the process.

    Events and replies go to stdout, everything else to stderr.

    Args:
        device_map: For every target that is loaded; see `load_placed`.
    """
    output = Output(take_stdout())
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    worker = Worker(loader(output, device_map), output.emit)
    tell_faults(lambda message, remedy: output.emit(RunFailed(message, remedy, "RankError")))

    def read() -> None:
        with suppress(OSError):
            worker.read(sys.stdin.buffer)
        # The main thread may be deep in a forward pass or a download, and nobody waits for it.
        timer = threading.Timer(EXIT_GRACE, end_process, (0,))
        timer.daemon = True
        timer.start()

    threading.Thread(target=read, daemon=True).start()
    with suppress(KeyboardInterrupt):
        worker.run()
    # Everything is written. Taking the interpreter down while the reading thread still runs makes
    # torch's runtime abort now and then ("terminate called without an active exception").
    logging.shutdown()
    sys.stderr.flush()
    end_process(0)


def worker(device_map: opt.DeviceMap = None) -> None:
    """Serve the terminal app: requests as JSON lines on stdin, the event stream on stdout.

    Ends when stdin closes. Meant for programs: `dartree-tui` starts one itself, or one elsewhere
    with `dartree-tui --worker "ssh host dartree worker"`. Under torchrun all processes hold the
    target together, and the first one serves.
    """
    if sys.stdin.isatty():
        example = json.dumps({"op": "load", "bundle": "demo"})
        print(f"Reading requests, one JSON object a line, such as {example}", file=sys.stderr)
    serve(device_map)

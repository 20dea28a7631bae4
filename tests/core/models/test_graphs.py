"""Recording and replaying: the rules bodies live by, and what happens where they are broken."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from dartree_core.models import graphs
from dartree_core.models.graphs import CudaRecorder, Graphs, Tape, wanted
from tests.core.fake_graphs import FakeRecorder

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_a_recording_repeats_its_work_on_the_same_memory() -> None:
    given, out = torch.arange(4.0), torch.zeros(4)
    runs = Graphs(FakeRecorder())
    tape = Tape()
    for value in (1.0, 5.0):
        given.fill_(value)
        runs.run(tape, "sum", 4, lambda: out.copy_(given * 2 + 1))
        assert out.tolist() == [value * 2 + 1] * 4
    assert (runs.recorded, runs.replayed) == (1, 2)


def test_the_stand_in_freezes_what_a_cuda_graph_freezes() -> None:
    """Numbers of the host and addresses: else tests with it would prove nothing."""
    out = torch.zeros(2)
    held = {"tensor": torch.ones(2), "number": 1.0}
    runs, tape = Graphs(FakeRecorder()), Tape()

    def body() -> None:
        out.copy_(held["tensor"] + held["number"])

    runs.run(tape, "sum", 0, body)
    held["number"] = 10.0
    runs.run(tape, "sum", 0, body)
    assert out.tolist() == [2.0, 2.0]
    held["tensor"] = torch.zeros(2)
    runs.run(tape, "sum", 0, body)
    assert out.tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    "wait", [lambda x: x.tolist(), lambda x: float(x.sum()), lambda x: bool((x > 0).any())]
)
def test_what_waits_for_the_device_is_run_plainly_ever_after(
    wait: Any, caplog: pytest.LogCaptureFixture
) -> None:
    given, out = torch.ones(2), torch.zeros(2)
    runs, tape = Graphs(FakeRecorder()), Tape()

    def body() -> None:
        wait(given)
        out.copy_(given)

    with caplog.at_level(logging.WARNING):
        for value in (1.0, 2.0, 3.0):
            given.fill_(value)
            runs.run(tape, "tree", value, body)
            assert out.tolist() == [value] * 2
    assert len(caplog.records) == 1
    assert graphs.ENV in caplog.text
    assert list(runs.failures) == ["tree"]
    assert not runs.recording("tree")
    # Other kinds of bodies are still recorded.
    runs.run(tape, "pass", 0, lambda: out.copy_(given + 1))
    assert runs.recording("pass")
    assert runs.recorded == 1


def test_a_tape_drops_its_oldest_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "_MOST", 2)
    recorder = FakeRecorder()
    runs, tape, out = Graphs(recorder), Tape(), torch.zeros(1)
    for shape in (1, 2, 3, 1):
        runs.run(tape, "fill", shape, lambda shape=shape: out.fill_(shape))
        assert out.item() == shape
    assert [shape for _, shape in tape.replays] == [3, 1]
    assert runs.recorded == 4
    assert recorder.settled == 2


def test_graphs_are_wanted_on_cuda_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(graphs.ENV, raising=False)
    assert wanted(CUDA)
    assert not wanted(CPU)
    assert not wanted(CUDA, False)
    assert wanted(CPU, True)
    monkeypatch.setenv(graphs.ENV, "0")
    assert not wanted(CUDA)
    assert wanted(CUDA, True)
    assert str(Graphs.on(CPU)) == "static shapes"


class Stage:
    """Notes in which order torch's CUDA interface is used, on a machine without CUDA."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, fails: bool = False) -> None:
        self.notes: list[Any] = []
        self.fails = fails
        self.current = "main"
        self.signature = inspect.signature(torch.cuda.graph.__init__)
        stage = self

        class Stream:
            def __init__(self, name: str = "side") -> None:
                self.name = name

            def wait_stream(self, other: Stream) -> None:
                stage.notes.append(f"{self.name} waits for {other.name}")

        class Graph:
            def replay(self) -> None:
                stage.notes.append(f"replay on {stage.current}")

        @contextmanager
        def on(stream: Stream) -> Iterator[None]:
            before, stage.current = stage.current, stream.name
            try:
                yield
            finally:
                stage.current = before

        @contextmanager
        def capture(graph: Graph, **options: Any) -> Iterator[None]:
            stage.signature.bind(None, graph, **options)
            stage.notes.append(f"capture on {options['stream'].name}, pool {options['pool']}")
            stage.current = options["stream"].name
            yield
            if stage.fails:  # like torch's, which then leaves the stream as it is
                raise RuntimeError("capture was invalidated")
            stage.notes.append("captured")

        main = Stream("main")
        for name, value in {
            "Stream": Stream,
            "CUDAGraph": Graph,
            "graph": capture,
            "stream": on,
            "device": lambda device: on(main),
            "current_stream": lambda device=None: main,
            "graph_pool_handle": lambda: "shared",
            "synchronize": lambda device=None: stage.notes.append("synchronize"),
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)


def test_cuda_records_after_warming_up_on_the_side_and_replays_on_the_main_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch)
    runs, tape = Graphs(CudaRecorder(CUDA)), Tape()
    for _ in range(2):
        runs.run(tape, "pass", 0, lambda: stage.notes.append(f"work on {stage.current}"))
    assert stage.notes == [
        "side waits for main",
        *["work on side"] * 2,
        "capture on side, pool shared",
        "work on side",
        "captured",
        "main waits for side",
        *["replay on main"] * 2,
    ]
    assert str(runs) == "graphs"


def test_a_failed_capture_restores_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, fails=True)
    runs = Graphs(CudaRecorder(CUDA))
    runs.run(Tape(), "pass", 0, lambda: stage.notes.append(f"work on {stage.current}"))
    assert stage.notes[-1] == "work on main"
    assert runs.failures == {"pass": "capture was invalidated"}

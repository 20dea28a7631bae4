"""Lost ranks: named by whoever is left, and the end of every process."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from dartree_core.config import DecodeConfig
from dartree_core.parallel.pulse import Listener, Patience, Pulse, State, process_state
from dartree_core.parallel.world import hostname
from tests.core import tiny
from tests.core.parallel.ranks import ranks

HERE = hostname()


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def listener(clock: Clock, *states: State) -> Listener:
    """One that finds these states, by process number."""
    return Listener(Patience(2.0, 30.0, 120.0), lambda pid: states[pid - 1], clock)


class TestListener:
    def test_two_that_are_well(self) -> None:
        clock = Clock()
        heard = listener(clock, "running", "running")
        for beat in range(100):
            heard.hear(0, Pulse(HERE, 1, beat))
            heard.hear(1, Pulse(HERE, 2, beat))
            clock.now += 1
            assert heard.lost() is None

    def test_one_that_died(self) -> None:
        heard = listener(Clock(), "running", "gone")
        heard.hear(0, Pulse(HERE, 1))
        heard.hear(1, Pulse(HERE, 2))
        lost = heard.lost()
        assert lost is not None
        assert lost.rank == 1
        assert lost.message == f"Rank 1 ({HERE}, process 2) has died."
        assert "memory" in lost.remedy

    def test_one_that_left_is_not_lost(self) -> None:
        heard = listener(Clock(), "gone")
        heard.hear(0, Pulse(HERE, 1))
        heard.forget(0)
        assert heard.lost() is None

    def test_one_that_is_suspended(self) -> None:
        clock = Clock()
        heard = listener(clock, "stopped")
        heard.hear(0, Pulse(HERE, 1))
        assert heard.lost() is None
        clock.now += 3
        heard.hear(0, Pulse(HERE, 1))
        lost = heard.lost()
        assert lost is not None
        assert "suspended" in lost.message

    def test_silence_from_another_machine(self) -> None:
        clock = Clock()
        heard = listener(clock)
        heard.hear(3, Pulse("elsewhere", 7))
        clock.now += 29
        assert heard.lost() is None
        clock.now += 2
        lost = heard.lost()
        assert lost is not None
        assert lost.message == "Rank 3 (elsewhere, process 7) has not answered for 31 s."

    def test_whoever_has_entered_fewer_passes_hangs(self) -> None:
        heard = listener(Clock(), "running", "running")
        heard.hear(0, Pulse(HERE, 1, passes=9, busy=121.0))
        heard.hear(1, Pulse(HERE, 2, passes=8))
        lost = heard.lost()
        assert lost is not None
        assert lost.rank == 1
        assert "hangs" in lost.message

    def test_a_long_pass_is_no_hang(self) -> None:
        heard = listener(Clock(), "running", "running")
        heard.hear(0, Pulse(HERE, 1, passes=9, busy=119.0))
        heard.hear(1, Pulse(HERE, 2, passes=9, busy=119.0))
        assert heard.lost() is None


def test_states_of_real_processes(tmp_path: Path) -> None:
    assert process_state(os.getpid()) == "running"
    for letter, state in (("T", "stopped"), ("Z", "gone"), ("S", "running")):
        (tmp_path / "7").mkdir(exist_ok=True)
        (tmp_path / "7" / "stat").write_text(f"7 (a ) name) {letter} 1 2 3")
        assert process_state(7, tmp_path) == state
    assert process_state(8, tmp_path) == "gone"


def test_a_rank_that_is_killed_in_a_run_is_named_and_ends_it() -> None:
    models = {
        "target": str(tiny.CHECKPOINTS / "target_tied"),
        "draft": str(tiny.CHECKPOINTS / "draft_tied_p0_s0"),
        "dtype": "float32",
    }
    config = DecodeConfig().with_changes(method="ar", max_new_tokens=480)
    with ranks("-m", "dartree_core", "worker") as both:
        both.send({"op": "load", "id": "load", **models})
        both.until(id="load")
        both.send({"op": "generate", "id": "g", "prompt": tiny.PROMPT, "config": config.to_dict()})
        both.until(kind="PrefillDone")
        lost = both.processes[1]
        lost.send_signal(signal.SIGKILL)
        failed = both.until(kind="RunFailed")[-1]
        (code, _, errors), (killed, _, _) = both.finish()
    assert (code, killed) == (1, -signal.SIGKILL), (failed, errors)
    assert failed["message"] == f"Rank 1 ({HERE}, process {lost.pid}) has died."
    assert f"error: Rank 1 ({HERE}, process {lost.pid}) has died." in errors


MEETING = """
import sys
from dartree_core.parallel.group import Group
from dartree_core.parallel.world import World
world = World.here()
group = Group.join(world, "tensor")
print("here", flush=True)
if sys.argv[1] == "memory" and not world.leads:
    from dartree_core.parallel.sharded import explain
    group.watch.fail(*explain(MemoryError()))
group.gather("waits for the other")
if not world.leads:
    group.receive()
sys.stdin.read()
"""


def test_a_rank_that_is_suspended_is_named() -> None:
    with ranks("-c", MEETING, "") as both:
        for process in both.processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"here\n"
        both.processes[1].send_signal(signal.SIGSTOP)
        code = both.processes[0].wait(60)
        ended = both.processes[1].wait(10)
        assert both.processes[0].stderr is not None
        errors = both.processes[0].stderr.read().decode()
    assert code == 1
    assert f"Rank 1 ({HERE}, process {both.processes[1].pid}) is suspended" in errors
    assert ended == -signal.SIGKILL


def test_a_rank_that_runs_out_of_memory_is_named_and_all_end() -> None:
    with ranks("-c", MEETING, "memory") as both:
        (first, _, errors), (second, _, _) = both.finish()
    assert (first, second) == (1, 1)
    assert "ran out of memory" in errors
    assert f"Rank 1 ({HERE}, process {both.processes[1].pid})" in errors
    assert "--nproc-per-node" in errors

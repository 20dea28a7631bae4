"""The processes of one run: their rendezvous, and what all of them may ask of each other."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from dartree_core.parallel.pulse import Patience
from dartree_core.parallel.watch import Watch
from dartree_core.parallel.world import World

Mode = Literal["tensor", "share"]
T = TypeVar("T")

_LONG = timedelta(days=365)
"""A user may think for hours between two questions; lost processes are the watch's business."""
_PACKET = 4096
_HEAD = 8


class Group:
    """Several processes of one run.

    Use `join`; `current` finds it again.

    Attributes:
        world: This process.
        mode: `tensor`: rank 0 decodes and all hold a part of the target. `share`: every rank
            works on its own part of the task.
        watch: Notices lost processes.
    """

    def __init__(self, world: World, mode: Mode, watch: Watch, store: Any, control: Any) -> None:
        self.world = world
        self.mode = mode
        self.watch = watch
        self._store = store
        self._control = control

    @classmethod
    def join(cls, world: World, mode: Mode) -> Group:
        """Meet the other processes; returns when all are there.

        Raises:
            RankError: They do not come.
        """
        from torch.distributed.rendezvous import rendezvous

        store, _, _ = next(rendezvous("env://", world.rank, world.size))
        # A connection of its own: on a shared one a waiting collective would hold the watch up.
        own = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
        # On CPUs a part of a long prompt may well take minutes.
        patience = Patience() if torch.cuda.is_available() else Patience(stalled=1800.0)
        watch = Watch(world, PrefixStore("dartree/watch", own), patience)
        watch.start()
        # With fewer devices than processes, whoever wants one is told by name later.
        cuda = world.local < torch.cuda.device_count()
        if cuda:
            torch.cuda.set_device(world.local)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if cuda else "gloo",
            store=PrefixStore("dartree/ranks", store),
            rank=world.rank,
            world_size=world.size,
            timeout=timedelta(hours=2),
        )
        control = dist.new_group(backend="gloo", timeout=_LONG)
        group = cls(world, mode, watch, PrefixStore("dartree/work", store), control)
        _joined.append(group)
        return group

    def leave(self, code: int) -> int:
        """This process has done its part; see `Watch.finish`."""
        _joined.clear()
        code = self.watch.finish(code)
        if code == 0 and dist.is_initialized():
            dist.destroy_process_group()
        return code

    def send(self, message: Any) -> None:
        """From rank 0 to all others, who `receive`; one packet where it is small."""
        body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        data = len(body).to_bytes(_HEAD, "little") + body
        data += bytes(max(0, _PACKET - len(data)))
        packet = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        dist.broadcast(packet[:_PACKET], 0, group=self._control)
        if len(packet) > _PACKET:
            dist.broadcast(packet[_PACKET:], 0, group=self._control)

    def receive(self) -> Any:
        """The next message of rank 0."""
        packet = torch.empty(_PACKET, dtype=torch.uint8)
        dist.broadcast(packet, 0, group=self._control)
        data = packet.numpy().tobytes()
        size = _HEAD + int.from_bytes(data[:_HEAD], "little")
        if size > _PACKET:
            rest = torch.empty(size - _PACKET, dtype=torch.uint8)
            dist.broadcast(rest, 0, group=self._control)
            data += rest.numpy().tobytes()
        return pickle.loads(data[_HEAD:size])

    def gather(self, mine: T) -> list[T]:
        """Every rank's contribution, in the order of ranks, in every process."""
        found: list[Any] = [None] * self.world.size
        dist.all_gather_object(found, mine, group=self._control)
        return found

    def tickets(self, name: str) -> Callable[[], int]:
        """Numbers from 0, each handed to one process of the group only.

        Args:
            name: Of the queue.
        """
        return lambda: int(self._store.add(name, 1)) - 1

    def sell_out(self, name: str) -> None:
        """Leave no tickets of this queue for anyone."""
        self._store.add(name, 1 << 40)

    @contextmanager
    def joint_pass(self) -> Iterator[None]:
        """What all ranks compute together; the watch is told, so that it can say who hangs."""
        self.watch.heart.enter()
        try:
            yield
        finally:
            self.watch.heart.leave()


_joined: list[Group] = []


def current() -> Group | None:
    """The group this process works in; None when it is alone."""
    return _joined[-1] if _joined else None


def tensor_group() -> Group | None:
    """The group that holds one target together, where there is one."""
    group = current()
    return group if group is not None and group.mode == "tensor" else None


def sharing_group() -> Group | None:
    """The group whose processes share a task among them, where there is one."""
    group = current()
    return group if group is not None and group.mode == "share" else None

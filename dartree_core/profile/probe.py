"""A stopwatch around the models' passes, there only while a run is profiled."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from dartree_core.profile.ceilings import settle

if TYPE_CHECKING:
    from dartree_core.engine import Decoder

Part: TypeAlias = Literal["target", "context", "draft", "head"]
"""`context` is what a drafter reads before a block, where it does not read both at once."""
_HEAD_CALLS = ("prepare", "root_state", "advance", "follow", "correct")


@dataclass(frozen=True, slots=True)
class Pass:
    """One timed call.

    Attributes:
        part: Whose pass it was.
        rows: Rows of a target pass, or of a block that was drafted; 0 elsewhere.
        context: Positions the target held before it.
        ms: Milliseconds, the device's work included.
    """

    part: Part
    rows: int
    context: int
    ms: float


class Probe:
    """Collects passes; a call within a timed call is part of it."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._passes: list[Pass] = []
        self._inside = False

    def take(self) -> list[Pass]:
        """Passes since the last call."""
        taken, self._passes = self._passes, []
        return taken

    def timed(
        self,
        part: Part,
        call: Callable[..., Any],
        block: Callable[[int | None], int] = lambda asked: 0,
    ) -> Callable[..., Any]:
        """`call` with a stopwatch around it; `block` tells a draft's rows from the size asked."""

        def run(*args: Any, **options: Any) -> Any:
            if self._inside:
                return call(*args, **options)
            rows = context = 0
            if part == "target":
                rows, context = len(args[0]), int(args[1].length)
            elif part == "draft":
                rows = block(args[2] if len(args) > 2 else options.get("block_size"))
            settle(self._device)
            self._inside = True
            began = time.perf_counter()
            try:
                result = call(*args, **options)
                settle(self._device)
            finally:
                self._inside = False
            ms = (time.perf_counter() - began) * 1e3
            self._passes.append(Pass(part, rows, context, ms))
            return result

        return run


@contextmanager
def probing(decoder: Decoder) -> Iterator[Probe]:
    """Time every pass of the decoder's models until the block is left.

    An accelerator is waited for before and after every pass, so a profiled run is slower where
    host and device would otherwise work side by side.
    """
    probe = Probe(decoder.target.device)
    wrapped: list[tuple[Any, str]] = []

    def wrap(owner: Any, part: Part, *names: str, **known: Any) -> None:
        for name in names:
            # An attribute of the object hides the class's method until it is deleted.
            setattr(owner, name, probe.timed(part, getattr(owner, name), **known))
            wrapped.append((owner, name))

    wrap(decoder.target, "target", "forward")
    if decoder.drafter is not None:
        wrap(decoder.drafter, "context", "extend")
        wrap(decoder.drafter, "draft", "draft", block=decoder.drafter.block_size)
        wrap(decoder.drafter.head, "head", *_HEAD_CALLS)
        if decoder.drafter.growth is not None:
            wrap(decoder.drafter.growth, "head", "grow")
        if decoder.drafter.static is not None:
            # Nothing may be waited for while a tree is recorded, and a replay calls no head.
            wrap(decoder.drafter.static, "head", "grow")
    try:
        yield probe
    finally:
        for owner, name in wrapped:
            delattr(owner, name)

"""What a profiled run came to: stages, the host's share, and passes against the machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from dartree_core.config import DecodeConfig
from dartree_core.events import STAGES, Event, PrefillDone, RoundDone
from dartree_core.profile.ceilings import Ceilings, ceilings_of
from dartree_core.profile.probe import Pass, Probe
from dartree_core.profile.work import Work, draft_work, target_work

if TYPE_CHECKING:
    from dartree_core.engine import Decoder
    from dartree_core.engine.prompt import Prompt

_STEPS = 12
"""Tokens decoded plainly for the AR step's figures, where the run had no plain steps."""


@dataclass(frozen=True, slots=True)
class PassFigures:
    """A kind of pass, by its median.

    Attributes:
        count: Passes timed.
        ms: Median milliseconds.
        rows, context: Medians.
        bytes, flops: What such a pass reads and computes.
        bandwidth, bandwidth_share: Bytes a second, and as a share of a large copy's.
        flop_rate, flop_share: Operations a second, and as a share of a large product's.
    """

    count: int
    ms: float
    rows: int
    context: int
    bytes: int
    flops: int
    bandwidth: float
    bandwidth_share: float
    flop_rate: float
    flop_share: float

    @classmethod
    def of(cls, passes: Sequence[Pass], work: Work, ceilings: Ceilings) -> PassFigures | None:
        """Figures of passes, or None without any."""
        if not passes:
            return None
        ms = median(p.ms for p in passes)
        rows = round(median(p.rows for p in passes))
        context = round(median(p.context for p in passes))
        moved, computed = work.bytes(context), work.flops(rows, context)
        bandwidth, rate = moved / ms * 1e3, computed / ms * 1e3
        return cls(
            len(passes), round(ms, 4), rows, context, moved, computed,
            round(bandwidth), round(bandwidth / ceilings.copy_bytes_s, 4),
            round(rate), round(rate / ceilings.flops_s, 4),
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {name: getattr(self, name) for name in self.__slots__}


class Profile:
    """Reads a run's events beside its probe.

    Args:
        decoder: Whose run it is.
        probe: Times its passes.
    """

    def __init__(self, decoder: Decoder, probe: Probe) -> None:
        self._decoder, self._probe = decoder, probe
        self._stage_ms = dict.fromkeys(STAGES, 0.0)
        self._rounds = 0
        self._model_ms = 0.0
        self._passes: list[Pass] = []

    def update(self, event: Event, *, plain: bool = False) -> None:
        """Take an event, and what ran to make it. Call it before the next is pulled.

        Args:
            event: Of the profiled turn, or of a plain turn beside it.
            plain: True for the latter, whose steps only count as AR steps.
        """
        passes = self._probe.take()
        if isinstance(event, PrefillDone):
            return  # the prompt's passes, of target and drafter, are no round's
        self._passes += [p for p in passes if not (plain and p.rows != 1)]
        if plain:
            return
        self._model_ms += sum(p.ms for p in passes)
        if isinstance(event, RoundDone):
            self._rounds += 1
            for stage, ms in event.ms.items():
                self._stage_ms[stage] += ms

    def step_plainly(self, prompt: Prompt, config: DecodeConfig) -> None:
        """Time some AR steps behind the same prompt, where the run has had too few."""
        if sum(p.part == "target" and p.rows == 1 for p in self._passes) >= _STEPS // 2:
            return
        plain = config.with_changes(method="ar", max_new_tokens=_STEPS, stop=(), detail="basic")
        for event in self._decoder.stream(prompt, plain):
            self.update(event, plain=True)

    def to_dict(self) -> dict[str, Any]:
        """The `profile` object of `--format json`: times in milliseconds, rates a second.

        `host` is the time of rounds outside passes of target, drafter and head.
        """
        target, drafter = self._decoder.target, self._decoder.drafter
        ceilings = ceilings_of(target, self._decoder.memory)
        total = sum(self._stage_ms.values())
        rounds = max(1, self._rounds)
        host = max(0.0, total - self._model_ms)
        of_target = [p for p in self._passes if p.part == "target"]
        work = target_work(target)
        kinds = {
            "ar_step": PassFigures.of([p for p in of_target if p.rows == 1], work, ceilings),
            "verify": PassFigures.of([p for p in of_target if p.rows > 1], work, ceilings),
        }
        if drafter is not None:
            drafts = [p for p in self._passes if p.part == "draft"]
            kinds["draft"] = PassFigures.of(drafts, draft_work(drafter), ceilings)
        return {
            "rounds": self._rounds,
            "round_ms": round(total / rounds, 4),
            "stages": {
                stage: {
                    "ms": round(ms / rounds, 4),
                    "share": round(ms / total, 4) if total else 0.0,
                }
                for stage, ms in self._stage_ms.items()
            },
            "host": {
                "ms": round(host / rounds, 4),
                "share": round(host / total, 4) if total else 0.0,
            },
            "passes": {name: found.to_dict() for name, found in kinds.items() if found},
            "machine": {
                "device": str(target.device),
                "path": target.path,
                "weight_dtype": str(target.weight_dtype).removeprefix("torch."),
                "threads": torch.get_num_threads(),
                "copy_bytes_s": round(ceilings.copy_bytes_s),
                "flops_s": round(ceilings.flops_s),
            },
        }

"""The measuring loop: every variant decodes every prompt, side by side, until told to stop."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from dartree_core.bench.check import compare
from dartree_core.bench.plan import Plan, Variant
from dartree_core.bench.quality import score
from dartree_core.bench.records import Case, Row, Sample
from dartree_core.bench.speakers import Asker, Speaker, converse
from dartree_core.bench.stop import Stop, Stopped
from dartree_core.config import DecodeConfig
from dartree_core.errors import DARTreeError

if TYPE_CHECKING:
    from dartree_core.engine.prompt import Prompt
    from dartree_core.models.target import Target

WARM_UP_TOKENS = 24


class Keeps(Protocol):
    """Where finished cases go."""

    cases: list[Case]

    def add(self, case: Case) -> None:
        """Keep a case."""
        ...


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is.

    Attributes:
        what: What runs now.
        done, total: Cases.
        seconds_left: Estimate from the cases of this run, or None before the first.
    """

    what: str
    done: int
    total: int
    seconds_left: float | None


@dataclass(slots=True)
class Bench:
    """One run.

    Attributes:
        plan: What is measured.
        asker: Makes prompts.
        speakers: Variant key to who answers.
        target: For scoring differences again.
        journal: Where finished cases go, and earlier ones come from.
        stop: The user's wish to stop.
        max_seconds: Begin no case after this time, or None.
        run_code: Whether programs that the model wrote may be run for scores.
        progress: Hears how far it is.
        missing: Peers that cannot run, and why.
        tickets: Where in the cases still to do to go on; hands every number out once, so that
            several processes may share a run. None for one after the other.
        ended: Why the run ended early: `interrupted`, `time limit`, or "".
    """

    plan: Plan
    asker: Asker
    speakers: dict[str, Speaker]
    target: Target
    journal: Keeps
    stop: Stop
    max_seconds: float | None = None
    run_code: bool = False
    progress: Callable[[Progress], None] = lambda _: None
    missing: dict[str, str] = field(default_factory=dict)
    tickets: Callable[[], int] | None = None
    ended: str = ""

    def run(self) -> list[Case]:
        """Measure what the journal lacks.

        Returns:
            All cases, earlier ones included.
        """
        wanted = list(self.plan.numbered())
        known = {case.key for case in self.journal.cases}
        to_do = [(i, u) for i, u in wanted if (u[0], u[1].id, u[2]) not in known]
        began = time.perf_counter()
        try:
            if to_do:
                self.progress(Progress("warming up", len(wanted) - len(to_do), len(wanted), None))
                self._warm_up(to_do[0][1][1])
            take = self.tickets or itertools.count().__next__
            while (done := take()) < len(to_do):
                index, (dataset, row, temperature) = to_do[done]
                spent = time.perf_counter() - began
                self._tell(dataset, done, len(to_do), len(wanted), spent)
                if self.max_seconds is not None and spent >= self.max_seconds:
                    self.ended = "time limit"
                    break
                self.journal.add(self._case(index, dataset, row, temperature))
        except Stopped:
            self.ended = "interrupted"
        return [c for c in self.journal.cases if c.key in {(d, r.id, t) for _, (d, r, t) in wanted}]

    def _tell(self, what: str, done: int, to_do: int, total: int, spent: float) -> None:
        left = spent / done * (to_do - done) if done else None
        if left is not None and self.max_seconds is not None:
            left = min(left, max(0.0, self.max_seconds - spent))
        self.progress(Progress(what, total - to_do + done, total, left))

    def _warm_up(self, row: Row) -> None:
        """A few tokens of every variant.

        A peer that cannot answer what plain decoding can is left out of the run. Other failures
        wait for the prompts themselves, where they are reported.
        """
        short = replace(
            self.plan.base, max_new_tokens=min(WARM_UP_TOKENS, self.plan.base.max_new_tokens)
        )
        first = replace(row, turns=row.turns[:1])
        usable = False
        # Sampling has first uses of its own.
        kinds = {temperature > 0: temperature for temperature in self.plan.temperatures}
        for variant in self.plan.variants:
            self.stop.check()
            try:
                for temperature in kinds.values():
                    config = variant.config(short, temperature)
                    converse(self.asker, self.speakers[variant.key], first, config)
                usable = True
            except Stopped:
                raise
            except Exception as error:
                if variant.is_peer and usable:
                    self.missing[variant.method] = _words(error)
        kept = [v for v in self.plan.variants if v.method not in self.missing]
        self.plan = replace(self.plan, variants=kept)

    def _case(self, index: int, dataset: str, row: Row, temperature: float) -> Case:
        """All variants on one prompt. One that fails does not keep the others from it."""
        passes: dict[str, list[_Pass]] = {v.key: [] for v in self.plan.variants}
        for again in range(self.plan.repeats):
            for variant in self.plan.rotated(index + again):
                config = variant.config(self.plan.base, temperature)
                made = _Pass(Sample(variant.key))
                passes[variant.key].append(made)
                try:
                    made.prompts, made.sample.turns = converse(
                        self.asker, self.speakers[variant.key], row, config
                    )
                except Stopped:
                    raise
                except Exception as error:
                    made.sample.error = _words(error)
        samples = {key: _typical([made.sample for made in found]) for key, found in passes.items()}
        plain = samples[self.plan.variants[0].key]
        for variant in self.plan.variants:
            sample = samples[variant.key]
            config = variant.config(self.plan.base, temperature)
            if sample.turns and plain.turns and _comparable(variant, config):
                # What any pass said counts, whichever is timed.
                for made in passes[variant.key]:
                    self.stop.check()
                    sample.divergence = sample.divergence or compare(
                        self.target, made.prompts, made.sample.turns, plain.turns, config
                    )
                sample.identical = sample.divergence is None
            if sample.turns:
                sample.quality = score(row, sample.turns[-1].text, run_code=self.run_code)
        return Case(dataset, row.id, temperature, [samples[v.key] for v in self.plan.variants])


@dataclass(slots=True)
class _Pass:
    """One answer of a variant, and the prompts it was given."""

    sample: Sample
    prompts: list[Prompt] = field(default_factory=list)


def _typical(samples: Sequence[Sample]) -> Sample:
    """The one of median decoding time; one that failed, if any did."""
    failed = next((sample for sample in samples if sample.error), None)
    ranked = sorted(samples, key=lambda sample: sample.decode_s)
    return failed or ranked[(len(ranked) - 1) // 2]


def _comparable(variant: Variant, config: DecodeConfig) -> bool:
    """Other engines draw their own random numbers; only their greedy output can be compared."""
    return config.sampling.greedy or not variant.is_peer


def _words(error: Exception) -> str:
    """An error in one line; ours speak for themselves, others need their name."""
    text = " ".join(str(error).split())
    if isinstance(error, DARTreeError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def journal_header(
    plan: Plan, sources: Mapping[str, str], models: Mapping[str, Any], asking: Mapping[str, Any]
) -> dict[str, Any]:
    """What must be the same for figures to stand in one table; the number of prompts need not.

    Args:
        plan: What is measured.
        sources: Data set to where it came from.
        models: What decodes, where and in which versions.
        asking: How prompts are made.
    """
    return {
        "variants": [v.key for v in plan.variants],
        "temperatures": list(plan.temperatures),
        "settings": plan.base.to_dict(),
        "repeats": plan.repeats,
        "datasets": dict(sources),
        "asking": dict(asking),
        **models,
    }

"""The numbers behind the statistics pane, gathered from the metrics and the newest round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from dartree_core.events import RoundDone

Speculation = Literal["on", "pays", "not paying", "off"]
"""`on` while no baseline tells whether it pays."""


@dataclass(frozen=True, slots=True)
class Stats:
    """What the pane shows. NaN and None stand for what nobody measured.

    Attributes:
        rounds: Rounds so far.
        now, average: Tokens per second over the last few rounds, and over the turn.
        speeds: Tokens per second of recent rounds, oldest first.
        baseline: Tokens per second of plain decoding on the same model and device.
        accepted_now: Draft tokens the newest round accepted and emitted.
        emitted_now: The same and its bonus token, where it emitted one.
        tau: Mean acceptance length; counts the bonus token, as papers do.
        histogram: Rounds by number of accepted draft tokens, from 0.
        survival: Per depth from 1, the share of all rounds that accepted so far.
        conditional: Per depth from 1, the share of those rounds that accepted the depth before.
        ms: Milliseconds by stage of the newest round.
        ttft: Seconds to the first token.
        kv_length: Committed positions in the target's cache.
        built, verified, height, budget: The newest tree: its nodes, those the target scored, the
            depth of the deepest of them, and how many were allowed.
        speculation, reason: Whether it is on and pays, and why not.
    """

    rounds: int = 0
    now: float = math.nan
    average: float = math.nan
    speeds: tuple[float, ...] = ()
    baseline: float = math.nan
    accepted_now: int | None = None
    emitted_now: int | None = None
    tau: float = math.nan
    histogram: tuple[int, ...] = ()
    survival: tuple[float, ...] = ()
    conditional: tuple[float, ...] = ()
    ms: Mapping[str, float] = field(default_factory=dict)
    ttft: float = math.nan
    kv_length: int = 0
    built: int = 0
    verified: int = 0
    height: int = 0
    budget: int = 0
    speculation: Speculation = "on"
    reason: str = ""

    @property
    def speedup(self) -> float:
        """Average speed over the baseline's; NaN without one."""
        return self.average / self.baseline if self.baseline > 0 else math.nan


def stats_of(
    summary: Mapping[str, Any],
    last: RoundDone | None,
    *,
    now: float = math.nan,
    speeds: Sequence[float] = (),
    baseline: float = math.nan,
    method: str = "dartree",
) -> Stats:
    """Gather the pane's numbers.

    Args:
        summary: `RunningMetrics.summary()` of the turn.
        last: Its newest round.
        now: Tokens per second over the last few rounds.
        speeds: The same at each of the recent rounds, oldest first.
        baseline: Tokens per second of plain decoding, NaN while not measured.
        method: Method of the turn; `ar` does not speculate.
    """
    sources = () if last is None else last.provenance
    accepted = sources.count("draft")
    ms = {} if last is None else {str(stage): value for stage, value in last.ms.items()}
    stats = Stats(
        rounds=summary["num_spec_steps"] + summary["num_plain_steps"],
        now=now,
        average=_number(summary["tokens_per_second"]),
        speeds=tuple(speeds),
        baseline=baseline,
        accepted_now=None if last is None else accepted,
        emitted_now=None if last is None else accepted + sources.count("bonus"),
        tau=_number(summary["mean_acceptance_length"]),
        histogram=tuple(summary["acceptance_histogram"]),
        survival=tuple(_number(x) for x in summary["acceptance_survival_by_depth"]),
        conditional=tuple(_number(x) for x in summary["acceptance_conditional_by_depth"]),
        ms=ms,
        ttft=_number(summary["ttft_s"]),
        kv_length=0 if last is None else last.kv_length,
        built=0 if last is None else len(last.tree) - 1,
        verified=0 if last is None else last.tree.num_verified,
        height=0 if last is None else last.tree.height,
        budget=0 if last is None else last.budget,
    )
    speculation, reason = _verdict(stats, summary, last, method)
    return replace(stats, speculation=speculation, reason=reason)


def _verdict(
    stats: Stats, summary: Mapping[str, Any], last: RoundDone | None, method: str
) -> tuple[Speculation, str]:
    if method == "ar":
        return "off", "method ar decodes one token a pass"
    if last is not None and stats.verified == 0:
        return "off", last.note or "the newest round drafted nothing"
    if math.isnan(stats.speedup) or math.isnan(stats.tau):
        return "on", ""
    # Both over all rounds, plain ones among them, as the speedup is; the prefill's token is none.
    seconds = sum(summary["stage_ms_mean"].values()) / 1000
    cost = seconds * stats.baseline
    yields = (summary["num_emitted_tokens"] - 1) / stats.rounds
    reason = f"a round takes as long as {cost:.1f} plain tokens and yields {yields:.1f}"
    return ("pays" if stats.speedup >= 1 else "not paying"), reason


def _number(value: float | None) -> float:
    return math.nan if value is None else value

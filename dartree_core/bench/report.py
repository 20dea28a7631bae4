"""From cases to the report: one row per data set, temperature and variant, and their averages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dartree_core.bench.plan import AXES, PEERS, Plan, Variant
from dartree_core.bench.quality import measure_of
from dartree_core.bench.records import Case, Sample
from dartree_core.bench.stats import mean, ratio, rounded, spread
from dartree_core.config import CHAINS, SamplingConfig, TreeConfig
from dartree_core.metrics import RunningMetrics, aggregate

REPORT_FORMAT = 1
AVERAGED = (
    "mean_acceptance_length",
    "tokens_per_round",
    "speedup",
    "speedup_total",
    "speedup_with_prefill",
    "tokens_per_second",
    "tokens_per_second_with_prefill",
    "identical",
)
"""Figures of a row that have a mean over data sets."""

POOLED = (
    "acceptance_survival_by_depth",
    "acceptance_conditional_by_depth",
    "stage_ms_mean",
    "stage_shares",
    "acceptance_by_context",
)
"""Figures that are taken over all data sets together instead."""

AVERAGE = "average"


def build(
    plan: Plan,
    cases: Sequence[Case],
    *,
    environment: Mapping[str, Any],
    sources: Mapping[str, str],
    missing: Mapping[str, str],
    ended: str = "",
    run_code: bool = False,
    defaults: SamplingConfig | None = None,
) -> dict[str, Any]:
    """The report, JSON-ready.

    Args:
        plan: What was to be measured.
        cases: What was.
        environment: Machine and versions.
        sources: Data set to where its rows came from.
        missing: Peers that could not run, and why.
        ended: Why the run ended early, or "".
        run_code: Whether programs were run for scores.
        defaults: How the model samples unless told otherwise, in `dartree run` too; None for ours.

    Returns:
        `rows`, `averages`, `best`, `failures`, `differences`, `environment` and what was asked
        for; see `row` for the figures.
    """
    variants = [v for v in plan.variants if v.method not in missing]
    rows = [
        row(plan, variant, name, temperature, found)
        | {"quality_measure": _measure(plan, name, run_code)}
        for name in plan.datasets
        for temperature in plan.temperatures
        if (found := [c for c in cases if c.dataset == name and c.temperature == temperature])
        for variant in variants
    ]
    pooled = [
        row(plan, variant, AVERAGE, temperature, [c for c in cases if c.temperature == temperature])
        for temperature in plan.temperatures
        for variant in variants
    ]
    averages = averaged(rows, pooled)
    base = plan.base.to_dict()
    winners = best(averages)
    for winner in winners:
        sampling = replace(plan.base.sampling, temperature=winner["temperature"])
        asked = _sampling_flags(sampling, defaults or SamplingConfig())
        winner["flags"] = " ".join([winner["flags"], *asked])
    return {
        "format": REPORT_FORMAT,
        "complete": len(cases) == plan.size,
        "ended": ended,
        "cases": len(cases),
        "cases_planned": plan.size,
        "settings": {
            "temperatures": list(plan.temperatures),
            "sampling": {k: v for k, v in base["sampling"].items() if k != "temperature"},
            "max_new_tokens": base["max_new_tokens"],
            "ignore_eos": base["ignore_eos"],
            "repeats": plan.repeats,
        },
        "datasets": {
            name: {"rows": len(rows_), "source": sources[name]}
            for name, rows_ in plan.datasets.items()
        },
        "rows": rows,
        "averages": averages,
        "best": winners,
        "missing": dict(missing),
        "failures": list(failures(cases)),
        "differences": list(differences(cases)),
        "environment": dict(environment),
    }


def _measure(plan: Plan, name: str, run_code: bool) -> str | None:
    measures = [measure_of(row, run_code=run_code) for row in plan.datasets[name]]
    return next((m for m in measures if m is not None), None)


def row(
    plan: Plan, variant: Variant, dataset: str, temperature: float, cases: Sequence[Case]
) -> dict[str, Any]:
    """Figures of one variant on one data set at one temperature.

    Returns:
        A dictionary with, besides the settings:

        - `mean_acceptance_length`: tau over all rounds that speculated, 1 + accepted / rounds;
          accepted are emitted draft tokens, and the bonus token counts, as in the papers. 1
          where nothing speculated. `acceptance_length_q1`, `_q3`: quartiles over prompts.
        - `tokens_per_round`: emitted tokens over all rounds, plain ones included.
        - `speedup`: median over prompts of AR's decoding time per token over the method's, with
          quartiles; `speedup_lowest`: of the prompt that gains least; `speedup_total`: the same
          of the sums over prompts; `speedup_with_prefill`: the median with prefill counted.
        - `tokens_per_second`: all decoded tokens over all decoding time, and `_median`, `_q1`,
          `_q3` over prompts; `tokens_per_second_with_prefill`: all tokens over all time.
        - `identical`: share of outputs equal to AR's, of the `compared` ones; the others
          are counted by their first difference: `differ_by_rounding`, `differ_really`, or
          `differ_in_length` where one just ends before the other.
        - `quality`: mean score of the `quality_scored` answers that have a reference.
        - acceptance by depth and stage times as in `RunningMetrics.summary`; `stage_shares`;
          `acceptance_by_context`: tau by length of the context.
    """
    pairs = [(s, _plain(c)) for c in cases if (s := c.sample(variant.key)) and not s.error]
    done = [sample for sample, _ in pairs]
    failed = sum(1 for c in cases if (s := c.sample(variant.key)) and s.error)
    turns = [turn for sample in done for turn in sample.turns]
    summary = aggregate(RunningMetrics.of_turn(turn.metrics) for turn in turns).summary()
    tree = variant.config(plan.base, temperature).tree
    used = variant.uses
    tokens = sum(s.tokens for s in done)
    decode_tokens, decode_s = sum(s.decode_tokens for s in done), sum(s.decode_s for s in done)
    prefill_s = sum(s.prefill_s for s in done)
    rounds = summary["num_spec_steps"] + summary["num_plain_steps"]
    stages = {} if variant.is_peer else summary["stage_ms_total"]
    qualities = [s.quality for s in done if s.quality is not None]
    return {
        "method": variant.method,
        "variant": variant.label,
        "key": variant.key,
        "flags": flags(variant),
        "dataset": dataset,
        "temperature": temperature,
        **{name: getattr(tree, name) if name in used else None for name in AXES},
        "prompts": len(done),
        "failed": failed,
        "turns": len(turns),
        "tokens": tokens,
        "mean_acceptance_length": summary["mean_acceptance_length"] or (1.0 if done else None),
        **_tau_spread(done),
        "tokens_per_round": ratio(decode_tokens, rounds),
        "draft_acceptance_rate": None if variant.is_peer else summary["draft_acceptance_rate"],
        **_speedups(pairs),
        "tokens_per_second": ratio(decode_tokens, decode_s),
        **spread(
            "tokens_per_second",
            (ratio(1.0, s.seconds_per_token) for s in done),
            median="tokens_per_second_median",
        ),
        "tokens_per_second_with_prefill": ratio(tokens, prefill_s + decode_s),
        "ttft_s": summary["ttft_s"],
        **_equality(done),
        "quality": rounded(sum(qualities) / len(qualities)) if qualities else None,
        "quality_scored": len(qualities),
        "decode_s": rounded(decode_s),
        "prefill_s": rounded(prefill_s),
        "num_spec_steps": summary["num_spec_steps"],
        "num_plain_steps": summary["num_plain_steps"],
        "nodes_per_step": ratio(summary["num_tree_nodes"], summary["num_spec_steps"]),
        "acceptance_histogram": summary["acceptance_histogram"],
        "acceptance_survival_by_depth": summary["acceptance_survival_by_depth"],
        "acceptance_conditional_by_depth": (
            [] if variant.is_peer else summary["acceptance_conditional_by_depth"]
        ),
        "stage_ms_mean": {} if variant.is_peer else summary["stage_ms_mean"],
        "stage_shares": {k: ratio(v, sum(stages.values())) for k, v in stages.items()},
        "acceptance_by_context": _by_context(done),
    }


def _plain(case: Case) -> Sample | None:
    """AR's sample of a case, or None when it failed."""
    sample = case.sample("ar")
    return sample if sample and not sample.error else None


def _tau_spread(samples: Iterable[Sample]) -> dict[str, Any]:
    found = []
    for sample in samples:
        steps = aggregate(RunningMetrics.of_turn(turn.metrics) for turn in sample.turns)
        found.append(steps.summary()["mean_acceptance_length"] or 1.0)
    return spread("acceptance_length", found, median="acceptance_length_median")


def _speedups(pairs: Sequence[tuple[Sample, Sample | None]]) -> dict[str, Any]:
    both = [(s, plain) for s, plain in pairs if plain is not None]
    timed = [(s, p) for s, p in both if s.seconds_per_token and p.seconds_per_token]
    ours_s = sum(s.decode_s for s, _ in timed)
    plain_s = sum(p.decode_s for _, p in timed)
    ours_n = sum(s.decode_tokens for s, _ in timed)
    plain_n = sum(p.decode_tokens for _, p in timed)
    total = ratio(plain_s * ours_n, ours_s * plain_n)
    found = [ratio(p.seconds_per_token, s.seconds_per_token) for s, p in timed]
    return {
        **spread("speedup", found),
        "speedup_lowest": min((x for x in found if x is not None), default=None),
        "speedup_total": total,
        **spread(
            "speedup_with_prefill",
            (
                ratio(p.seconds_per_token_with_prefill, s.seconds_per_token_with_prefill)
                for s, p in both
            ),
        ),
    }


def _equality(samples: Sequence[Sample]) -> dict[str, Any]:
    compared = [s for s in samples if s.identical is not None]
    reals = Counter(s.divergence["real"] for s in compared if s.divergence)
    return {
        "identical": ratio(sum(bool(s.identical) for s in compared), len(compared)),
        "compared": len(compared),
        "differ_by_rounding": reals[False],
        "differ_really": reals[True],
        "differ_in_length": reals[None],
    }


def _by_context(samples: Iterable[Sample]) -> list[dict[str, Any]]:
    cells: dict[int, list[int]] = {}
    for sample in samples:
        for turn in sample.turns:
            for edge, (steps, accepted) in turn.context.items():
                cell = cells.setdefault(int(edge), [0, 0])
                cell[0] += steps
                cell[1] += accepted
    return [
        {"from": edge, "steps": steps, "mean_acceptance_length": ratio(steps + accepted, steps)}
        for edge, (steps, accepted) in sorted(cells.items())
    ]


def averaged(
    rows: Sequence[Mapping[str, Any]], pooled: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Means over data sets, each weighing the same, as in the papers' last column.

    Args:
        rows: One per data set, temperature and variant.
        pooled: Rows over the cases of all data sets, for what has no mean.
    """
    shapes = {(p["temperature"], p["key"]): {name: p[name] for name in POOLED} for p in pooled}
    groups: dict[tuple[float, str], list[Mapping[str, Any]]] = {}
    for found in rows:
        groups.setdefault((found["temperature"], found["key"]), []).append(found)
    kept = ("method", "variant", "key", "flags", "temperature", *AXES)
    return [
        {
            **{name: group[0][name] for name in kept},
            "datasets": len(group),
            **{name: mean([found[name] for found in group]) for name in AVERAGED},
            **shapes[place],
        }
        for place, group in groups.items()
    ]


def best(averages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Per temperature our fastest variant on this device, with the flags that ask for it."""
    found = []
    for temperature in dict.fromkeys(a["temperature"] for a in averages):
        ours = [
            a
            for a in averages
            if a["temperature"] == temperature
            and a["speedup"] is not None
            and a["method"] not in PEERS
        ]
        if not ours:
            continue
        winner = max(ours, key=lambda a: (a["speedup"], a["method"] == "ar"))
        kept = ("method", "variant", "key", "flags", "temperature", "speedup")
        found.append({name: winner[name] for name in (*kept, "mean_acceptance_length")})
    return found


def flags(variant: Variant) -> str:
    """What `dartree run` takes to decode like this; "" for another engine."""
    if variant.is_peer:
        return ""
    words = [f"--method {variant.method}"]
    for name, value in variant.settings:
        option = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        else:
            words.append(f"--{option} {value}")
    settings = dict(variant.settings)
    if variant.method in CHAINS and "budget" not in settings:
        words.append(f"--budget {TreeConfig().budget}")  # whole blocks; auto would cut them
    if settings.get("budget") == "auto" and "graft" not in settings:
        words.append("--no-graft")  # which `run` would do by default
    return " ".join(words)


def _sampling_flags(wanted: SamplingConfig, defaults: SamplingConfig) -> list[str]:
    """What `dartree run` takes to sample as wanted, where it would not by itself."""
    used = ["temperature", "repetition_penalty"]
    if not wanted.greedy:
        used += ["top_k", "top_p", "min_p", "seed"]
    return [
        f"--{name.replace('_', '-')} {getattr(wanted, name)}"
        for name in used
        if getattr(wanted, name) != getattr(defaults, name)
    ]


def failures(cases: Iterable[Case]) -> Iterable[dict[str, Any]]:
    """Prompts that a variant could not answer, and why."""
    for case in cases:
        for sample in case.samples:
            if sample.error:
                yield {
                    "dataset": case.dataset,
                    "row": case.row,
                    "temperature": case.temperature,
                    "variant": sample.variant,
                    "error": sample.error,
                }


def differences(cases: Iterable[Case]) -> Iterable[dict[str, Any]]:
    """Outputs that are not AR's: where they first differ, and by what margin."""
    for case in cases:
        for sample in case.samples:
            if sample.divergence:
                yield {
                    "dataset": case.dataset,
                    "row": case.row,
                    "temperature": case.temperature,
                    "variant": sample.variant,
                    **sample.divergence,
                }

"""The figures printed after a run."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dartree_core.cli.outcome import Outcome
from dartree_core.cli.profile import profile_rows

_BARS = " ▁▂▃▄▅▆▇█"


def print_report(outcome: Outcome) -> None:
    """A few lines on standard error."""
    console = Console(stderr=True)
    metrics = outcome.metrics
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    for name, value in _rows(outcome, metrics):
        table.add_row(name, value)
    console.print()
    console.print(table)
    comparison = outcome.comparison()
    if comparison is not None and comparison["speedup"] is not None and comparison["speedup"] < 1:
        console.print(Text(_advice(outcome), style="yellow"))


def _advice(outcome: Outcome) -> str:
    if outcome.config.tree.budget != "auto":
        return (
            "Speculation was slower than plain decoding here. A smaller --budget costs less per "
            "round; --budget auto drafts where it pays; --method ar decodes plainly."
        )
    return (
        f"Slower than plain decoding here, with drafts in {outcome.metrics['num_spec_steps']} "
        "rounds. Short answers and busy machines make this figure uncertain."
    )


def _rows(outcome: Outcome, metrics: dict[str, Any]) -> list[tuple[str, str]]:
    method = outcome.config.method
    finished = outcome.finished
    ttft = metrics["ttft_s"]  # None when the prompt was never read to its end
    rows = [
        (
            "answer",
            f"{metrics['num_emitted_tokens']} tokens, ended by {_reason(finished.reason)}; "
            f"first token after {'-' if ttft is None else f'{ttft:.2f} s'}",
        )
    ]
    speed = metrics["tokens_per_second"]
    if speed:
        rows.append(("speed", f"{speed:.1f} tokens/s decoding ({method})"))
    if metrics["num_spec_steps"]:
        rows.append(
            (
                "acceptance",
                f"τ {metrics['mean_acceptance_length']:.2f} tokens a round, bonus token included "
                f"(as papers count it), over {metrics['num_spec_steps']} rounds",
            )
        )
        rows.append(("accepted", _histogram(metrics["acceptance_histogram"])))
        rows.append(
            (
                "tree",
                f"{metrics['num_tree_nodes'] / metrics['num_spec_steps']:.1f} nodes verified a "
                f"round, {metrics['tree_depth']['mean']:.1f} deep",
            )
        )
    plain = metrics["num_plain_steps"]
    if plain and method != "ar" and outcome.config.tree.budget == "auto":
        rows.append(
            (
                "plain",
                f"{plain} of {plain + metrics['num_spec_steps']} steps without a draft, where "
                "none was expected to pay",
            )
        )
    stages = "  ".join(f"{k} {v:.1f}" for k, v in metrics["stage_ms_mean"].items() if v)
    if stages:
        rows.append(("ms a round", stages))
    comparison = outcome.comparison()
    if comparison is not None:
        same = _sameness(outcome, comparison)
        rate = comparison["ar_tokens_per_second"]
        if comparison["speedup"] is not None:
            rows.append(
                (
                    "against AR",
                    f"{comparison['speedup']:.2f}× plain decoding ({rate:.1f} tokens/s, "
                    f"interleaved); {same}",
                )
            )
        else:
            rows.append(("against AR", f"too short to measure; {same}"))
    if outcome.profile is not None:
        rows += profile_rows(outcome.profile)
    return rows


def _sameness(outcome: Outcome, comparison: dict[str, Any]) -> str:
    if comparison["identical"] is None:
        return "no tokens to compare"
    same = "the same tokens" if comparison["identical"] else "DIFFERENT tokens"
    plain = outcome.plain
    if plain is not None and "cancelled" in (outcome.finished.reason, plain.reason):
        same += f" in the {comparison['compared_tokens']} that both have"
    return same


def _reason(reason: str) -> str:
    return {
        "eos": "the model",
        "stop_string": "a stop string",
        "length": "the token limit",
        "cancelled": "you",
    }.get(reason, reason)


def _histogram(counts: list[int]) -> str:
    top = max(counts, default=0) or 1
    return "  ".join(f"{i}:{_BARS[-(-8 * n // top)]} {n}" for i, n in enumerate(counts))

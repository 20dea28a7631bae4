"""What a round costs besides the target: milliseconds and plain steps per stage.

    python benchmarks/round_cost.py                       # the demo; about a minute on two cores
    python benchmarks/round_cost.py --budgets 8,16,64 --widths 4,12 --json round_cost.json
    python benchmarks/round_cost.py --target T --draft D --prompt-ids 5,17,3,29,11

Plain steps and rounds of every fixed budget and width are decoded in turn, a short answer each,
from the same prompt, so that a busy machine is as busy for all of them; the first turn of each is
a warm-up. Stages are those of `RoundDone.ms`: `draft` and `tree_build` are the price of a draft,
`tree_setup` and `commit` bookkeeping, `verify` the target's pass with the walk. One step is the
median plain round. `--clock cpu` counts this thread's CPU time instead of the clock's: on a machine
that others use, with OMP_NUM_THREADS=1, that is the steadier figure.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dartree_core import DecodeConfig, Decoder

PROMPT = "Write a Python function that returns the n-th Fibonacci number, and explain it."
STAGES = ("draft", "tree_build", "tree_setup", "verify", "commit")
TOTALS = {
    "draft+build": ("draft", "tree_build"),
    "host": ("draft", "tree_build", "tree_setup", "commit"),
    "round": STAGES,
}


@dataclass
class Case:
    """One way of decoding, and the rounds it took.

    Attributes:
        name: For people.
        config: Settings of its turns.
        rounds: Per round milliseconds by stage.
        emitted: Tokens of these rounds.
    """

    name: str
    config: DecodeConfig
    rounds: list[dict[str, float]] = field(default_factory=list)
    emitted: int = 0

    def milliseconds(self, stages: Sequence[str]) -> list[float]:
        """Of all rounds, summed over `stages`."""
        return [sum(ms[stage] for stage in stages) for ms in self.rounds]


def cases(arguments: argparse.Namespace) -> list[Case]:
    """Plain decoding first, then every budget with every width."""
    from dartree_core import DecodeConfig

    base = DecodeConfig(max_new_tokens=arguments.tokens, ignore_eos=True)
    plain = base.with_changes(method="ar", max_new_tokens=max(8, arguments.tokens // 3))
    found = [Case("ar", plain)]
    for budget in arguments.budgets:
        for width in arguments.widths:
            config = base.with_changes(method=arguments.method, budget=budget, width=width)
            found.append(Case(f"B={budget} W={width}", config))
    return found


def measure(decoder: Decoder, prompt: Any, found: Sequence[Case], repeats: int) -> None:
    """Fill in the cases' rounds; who goes first changes every time."""
    from dartree_core.events import RoundDone

    for turn in range(repeats + 1):
        first = turn % len(found)
        for case in (*found[first:], *found[:first]):
            done = [e for e in decoder.stream(prompt, case.config) if isinstance(e, RoundDone)]
            if turn == 0:
                continue
            # The first round also encodes the prompt; the last is cut where the answer ends.
            for event in done[1:-1]:
                case.rounds.append({str(stage): ms for stage, ms in event.ms.items()})
                case.emitted += len(event.tokens)


def quartiles(values: Sequence[float]) -> list[float]:
    """Lower quartile, median, upper quartile."""
    if len(values) < 2:
        return [values[0]] * 3
    return statistics.quantiles(values, n=4, method="inclusive")


def report(decoder: Decoder, found: Sequence[Case], clock: str) -> dict[str, Any]:
    """All figures: `ms` and `steps` hold [lower quartile, median, upper quartile]."""
    import torch

    for case in found:
        if not case.rounds:
            raise SystemExit(f"{case.name} took too few rounds; raise --tokens.")
    step = statistics.median(found[0].milliseconds(STAGES))
    rows = []
    for case in found:
        parts = {stage: (stage,) for stage in STAGES} | TOTALS
        ms = {name: quartiles(case.milliseconds(stages)) for name, stages in parts.items()}
        rows.append(
            {
                "case": case.name,
                "rounds": len(case.rounds),
                "tokens_per_round": case.emitted / len(case.rounds),
                "ms": {name: [round(v, 4) for v in values] for name, values in ms.items()},
                "steps": {
                    name: [round(v / step, 4) for v in values] for name, values in ms.items()
                },
            }
        )
    return {
        "bundle": decoder.bundle,
        "path": decoder.target.path,
        "device": str(decoder.target.device),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "clock": clock,
        "step_ms": round(step, 4),
        "cases": rows,
    }


def show(figures: dict[str, Any]) -> None:
    """Print a table: per stage the median in ms and, below, in plain steps, with quartiles."""
    print(
        f"{figures['bundle'] or 'custom models'} on {figures['path']}, {figures['device']}, "
        f"{figures['threads']} threads, {figures['clock']} time; one plain step takes "
        f"{figures['step_ms']:.2f} ms"
    )
    names = (*STAGES, *TOTALS)
    print(f"{'':12}{'rounds':>7}{'τ':>6}" + "".join(f"{name:>20}" for name in names))
    for row in figures["cases"]:
        head = f"{row['case']:12}{row['rounds']:7d}{row['tokens_per_round']:6.2f}"
        for unit, lead in (("ms", head), ("steps", " " * len(head))):
            digits = 2 if unit == "ms" else 3
            cells = ""
            for name in names:
                low, middle, high = row[unit][name]
                cells += f"{f'{middle:.{digits}f} [{low:.{digits}f} {high:.{digits}f}]':>20}"
            print(f"{lead}{cells} {unit}")


def _integers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", default="demo", help="a bundle's name")
    parser.add_argument("--target", help="a target's folder or repository, instead of a bundle's")
    parser.add_argument("--draft", help="a drafter's folder or repository")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--method", default="dartree", help="what drafts")
    parser.add_argument("--budgets", default=[8, 16, 64], help="comma-separated", type=_integers)
    parser.add_argument("--widths", default=[12], help="comma-separated", type=_integers)
    parser.add_argument("--tokens", type=int, default=48, help="tokens a turn")
    parser.add_argument("--repeats", type=int, default=5, help="turns a case, after a warm-up")
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument(
        "--prompt-ids", help="token ids, for a target without tokenizer", type=_integers
    )
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--json", type=Path, help="also write all figures here")
    arguments = parser.parse_args()

    from dartree_core import load
    from dartree_core.engine.round import Laps

    if arguments.clock == "cpu":
        Laps.clock = staticmethod(time.thread_time)
    decoder = load(
        arguments.bundle,
        target=arguments.target,
        draft=arguments.draft,
        device=arguments.device,
    )
    found = cases(arguments)
    measure(decoder, arguments.prompt_ids or arguments.prompt, found, arguments.repeats)
    figures = report(decoder, found, arguments.clock)
    show(figures)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()

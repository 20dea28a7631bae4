"""What drafting with the target's own noise is worth: acceptance length, every method and budget.

    python benchmarks/coupled.py --prompts 12 --tokens 64 --output benchmarks/coupled.json

Three columns: greedy; sampling at `--temperature` as the papers draft; and the same, coupled. The
answers are decoded plainly, once per temperature; every cell then walks its trees along them
(`dartree_core.bench.replay`), which gives decoding's own rounds. Coupling starts every cell
knowing nothing, and learns as it goes. Tokens per round count the bonus token.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from dartree_core import DecodeConfig, load
from dartree_core.bench.datasets import load_dataset
from dartree_core.bench.environment import models
from dartree_core.bench.replay import Known, record, replay
from dartree_core.bench.stats import quartiles
from dartree_core.config import CHAINS, METHODS, Method
from dartree_core.draft import Drafter
from dartree_core.engine.coupling import Coupling


@dataclass(frozen=True, slots=True)
class Cell:
    """One method and budget, drafted one way.

    Attributes:
        method, budget: What drafted; chains have no budget.
        mode: `greedy`, `uncoupled` or `coupled`.
        rounds: Whole rounds, over all prompts.
        tau: Tokens a round, bonus included, over all rounds.
        q1, q3: Quartiles of the prompts' own figures.
        weights: Final weights of drafter and noise, where coupled.
    """

    method: Method
    budget: int | None
    mode: str
    rounds: int
    tau: float
    q1: float | None
    q3: float | None
    weights: tuple[float, float] | None = None


def measure(
    drafter: Drafter,
    answers: Sequence[tuple[DecodeConfig, Known]],
    method: Method,
    budget: int,
    mode: str,
) -> Cell:
    """A method and budget along known answers."""
    coupling = Coupling(drafter.target.embed)
    rounds, tokens, own, weights = 0, 0, [], None
    for base, known in answers:
        config = base.with_changes(method=method, budget=budget, coupled=mode == "coupled")
        accepted = list(replay(known, drafter, config, coupling))
        if mode == "coupled":
            learnt = coupling.weights(config)
            weights = (round(learnt.a, 3), round(learnt.b, 3))
        rounds += len(accepted)
        tokens += sum(accepted) + len(accepted)
        own += [sum(accepted) / len(accepted) + 1] if accepted else []
    q1, _, q3 = quartiles(own)
    used = None if method in CHAINS else budget
    return Cell(method, used, mode, rounds, round(tokens / max(1, rounds), 4), q1, q3, weights)


def row(cells: Sequence[Cell]) -> str:
    """One line of the table: greedy, uncoupled, coupled, and coupled's share of greedy."""
    greedy, uncoupled, coupled = cells
    name = greedy.method if greedy.budget is None else f"{greedy.method} B={greedy.budget}"
    figures = " | ".join(f"{c.tau:.2f} ({c.q1:.2f}–{c.q3:.2f})" for c in cells)
    gain = coupled.tau / uncoupled.tau - 1
    return f"| {name} | {figures} | {gain:+.1%} | {coupled.tau / greedy.tau:.0%} |"


def main() -> None:
    """Measure, print a Markdown table, and write all figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", default="demo")
    parser.add_argument("--datasets", default="builtin", help="as `dartree bench` knows them")
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--budgets", type=int, nargs="+", default=[4, 8, 16, 64])
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()

    decoder = load(asked.bundle)
    drafter = decoder.drafter
    if drafter is None:
        parser.error(f"bundle {asked.bundle} has no drafter")
    rows = load_dataset(asked.datasets, limit=asked.prompts).rows
    base = DecodeConfig(max_new_tokens=asked.tokens)
    known: dict[float, list[tuple[DecodeConfig, Known]]] = {}
    for temperature in (0.0, asked.temperature):
        known[temperature] = []
        for seed, prompt in enumerate(rows):
            config = base.with_changes(temperature=temperature, seed=seed)
            encoded = decoder.encode(prompt.turns[0], thinking=False)
            known[temperature].append((config, record(decoder, encoded, config)))
            print(f"answered {seed + 1}/{len(rows)}, T={temperature}", file=sys.stderr)

    cells: list[Cell] = []
    heat = f"T={asked.temperature:g}"
    print(f"| τ (quartiles over prompts) | T=0 | {heat} | {heat}, coupled | gain | of T=0 |")
    print("|---|---|---|---|---|---|", flush=True)
    for method in METHODS[1:]:
        for budget in asked.budgets[:1] if method in CHAINS else asked.budgets:
            found = [measure(drafter, known[0.0], method, budget, "greedy")]
            for mode in ("uncoupled", "coupled"):
                found.append(measure(drafter, known[asked.temperature], method, budget, mode))
            print(row(found), flush=True)
            cells += found
            if asked.output is not None:
                report = {
                    **models(decoder),
                    "prompts": len(rows),
                    "tokens": asked.tokens,
                    "temperature": asked.temperature,
                    "cells": [asdict(cell) for cell in cells],
                }
                asked.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

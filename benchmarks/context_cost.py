"""What a DARTree round costs against a plain step as the context grows.

    python benchmarks/context_cost.py --max-context 4096

A round reads the context once however many nodes it verifies, so the ratio should not grow with
it. Prompts are random tokens: what is accepted does not matter here, only what a round takes.
Plain steps and rounds alternate behind the same cached prompt, and medians are compared.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import TypeAlias

from dartree_core import DecodeConfig, Decoder, load
from dartree_core.engine import Session
from dartree_core.events import STAGES, PrefillDone, RoundDone

Taken: TypeAlias = tuple[list[RoundDone], float]
CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8000)


@dataclass(frozen=True, slots=True)
class Row:
    """One context length; milliseconds are medians.

    Attributes:
        context: Tokens of the prompt.
        step_ms, round_ms: A plain step; a round with `nodes` verified nodes.
        ratio, ratio_q1, ratio_q3: Round over step of each pair: median and quartiles.
        stages: The round's stages.
        prefill_s: Seconds to read the prompt.
    """

    context: int
    nodes: int
    step_ms: float
    round_ms: float
    ratio: float
    ratio_q1: float
    ratio_q3: float
    stages: dict[str, float]
    prefill_s: float


def rounds(decoder: Decoder, session: Session, prompt: list[int], config: DecodeConfig) -> Taken:
    """A turn's rounds, and its prefill's seconds."""
    found: list[RoundDone] = []
    seconds = 0.0
    for event in decoder.stream(prompt, config, session=session):
        if isinstance(event, PrefillDone):
            seconds = event.seconds
        elif isinstance(event, RoundDone):
            found.append(event)
    return found, seconds


def measure(decoder: Decoder, context: int, budget: int, pairs: int, seed: int = 0) -> Row:
    """Pairs of one plain step and one round behind `context` random tokens."""
    dice = random.Random(seed)
    prompt = [dice.randrange(1000, decoder.target.vocab_size) for _ in range(context)]
    tree = DecodeConfig(ignore_eos=True, max_new_tokens=16).with_changes(budget=budget)
    plain = tree.with_changes(method="ar", max_new_tokens=3)
    session = decoder.session()
    _, prefill_s = rounds(decoder, session, prompt, tree)
    steps: list[float] = []
    trees: list[RoundDone] = []
    for _ in range(pairs):
        # The second of each: the first has the rest of the prefill to do.
        steps.append(sum(rounds(decoder, session, prompt, plain)[0][1].ms.values()))
        trees.append(rounds(decoder, session, prompt, tree)[0][1])
    spent = [sum(done.ms.values()) for done in trees]
    ratios = [tree_ms / step_ms for tree_ms, step_ms in zip(spent, steps, strict=True)]
    low, _, high = quantiles(ratios, n=4)
    return Row(
        context=context,
        nodes=round(median(done.tree.num_verified for done in trees)),
        step_ms=round(median(steps), 3),
        round_ms=round(median(spent), 3),
        ratio=round(median(ratios), 3),
        ratio_q1=round(low, 3),
        ratio_q3=round(high, 3),
        stages={s: round(median(done.ms[s] for done in trees), 3) for s in STAGES},
        prefill_s=round(prefill_s, 3),
    )


def main() -> None:
    """Measure, print a table, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", default="demo")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--budget", type=int, default=16, help="nodes verified a round")
    parser.add_argument("--max-context", type=int, default=CONTEXTS[-1])
    parser.add_argument("--pairs", type=int, default=9, help="steps and rounds a length")
    parser.add_argument("--output", type=Path, help="also write JSON here")
    given = parser.parse_args()
    if given.pairs < 2:
        parser.error("--pairs must be at least 2, for quartiles")
    decoder = load(given.bundle, device=given.device, dtype=given.dtype)
    longest = min(given.max_context, decoder.target.max_positions - 2 * given.budget)
    contexts = [c for c in CONTEXTS if c <= longest]
    if not contexts:
        parser.error(f"--max-context must be at least {CONTEXTS[0]}")
    print(f"{'context':>8} {'step ms':>9} {'round ms':>9} {'ratio':>6}  quartiles    stages")
    found = []
    for context in contexts:
        row = measure(decoder, context, given.budget, given.pairs)
        found.append(row)
        stages = "  ".join(f"{name} {ms:.1f}" for name, ms in row.stages.items())
        print(
            f"{row.context:>8} {row.step_ms:>9.2f} {row.round_ms:>9.2f} {row.ratio:>6.2f}  "
            f"{row.ratio_q1:.2f}-{row.ratio_q3:.2f}    {stages}",
            flush=True,
        )
    if given.output:
        data = {"command": sys.argv, "budget": given.budget, "rows": [asdict(r) for r in found]}
        given.output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

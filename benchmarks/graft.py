"""What grafting is worth: tokens a round and tokens a second, with and without, interleaved.

    python benchmarks/graft.py --tokens 96 --budgets 16 auto --output benchmarks/graft.json

Prompts of three kinds: chat, where little repeats; code to edit; text to quote or summarise. Every
prompt is decoded by both, one after the other, who goes first changing with the prompt; outputs
must be equal. Speed is decoding's alone, without the prefill: the median over prompts of the ratio
of both times, with quartiles. Each way of drafting has a decoder of its own, so that neither
learns from the other's rounds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from dartree_core import DecodeConfig, load
from dartree_core.bench.environment import load_average, models
from dartree_core.bench.stats import quartiles
from dartree_core.config import METHODS
from dartree_core.engine import Decoder
from dartree_core.events import RoundDone, TurnFinished

_CODE = """def total(items, rate):
    result = 0
    for item in items:
        price = item["price"] * item["count"]
        if item["taxed"]:
            price = price * (1 + rate)
        result = result + price
    return result
"""
_CLASS = """class Stack:
    def __init__(self):
        self.items = []

    def push(self, value):
        self.items.append(value)

    def pop(self):
        if not self.items:
            raise IndexError("pop from an empty stack")
        return self.items.pop()
"""
_TEXT = (
    "The old lighthouse at Carrow Point was built in 1874 from grey stone that was brought by "
    "boat. Its lamp could be seen from twenty miles away. Three keepers lived there with their "
    "families, and each of them kept watch for eight hours a day. In 1961 the lamp was replaced "
    "by an electric one, and the last keeper left the island two years later. Today the tower "
    "is a small museum, and visitors can climb its 142 steps from May to September."
)
_MEETING = (
    "Anna said that the new office will open on 3 March. Ben asked whether the parking lot will "
    "be ready by then. Anna answered that the parking lot will be ready in April, and that until "
    "then everybody can park behind the library. Carla will order the desks this week."
)

PROMPTS: dict[str, tuple[str, ...]] = {
    "chat": (
        "Why do leaves change colour in autumn?",
        "What should I pack for a weekend in the mountains?",
        "Explain what a compiler does to a ten-year-old.",
        "How can I fall asleep faster?",
        "Tell me a short story about a clockmaker.",
        "What are the advantages of riding a bicycle to work?",
    ),
    "code": (
        f"Rename the variable `price` to `amount`. Write the whole function again.\n\n{_CODE}",
        f"Repeat this function exactly, and add a docstring.\n\n{_CODE}",
        f"Write this function again with type hints.\n\n{_CODE}",
        f"Add a method `peek` to this class. Write the whole class again.\n\n{_CLASS}",
        f"Rename `items` to `values` in this class and print the whole class.\n\n{_CLASS}",
        f"Copy this class and call it Pile instead of Stack.\n\n{_CLASS}",
    ),
    "text": (
        f"Repeat the following text word for word.\n\n{_TEXT}",
        f"Summarise the following text in two sentences.\n\n{_TEXT}",
        f"Correct the spelling of this text, if needed, and write it again.\n\n{_TEXT}",
        f"Quote the sentences of this text that contain a number.\n\n{_TEXT}",
        f"Summarise these minutes.\n\n{_MEETING}",
        f"List what everybody said, as bullet points.\n\n{_MEETING}",
    ),
}


@dataclass(frozen=True, slots=True)
class Turn:
    """One prompt, decoded one way.

    Attributes:
        kind, prompt: Where it is in `PROMPTS`.
        budget: Nodes a round.
        graft: With grafting.
        tokens: Emitted after the first, by the rounds.
        rounds: Rounds it took.
        seconds: Time of the rounds.
    """

    kind: str
    prompt: int
    budget: int | Literal["auto"]
    graft: bool
    tokens: int
    rounds: int
    seconds: float


def fresh(loaded: Decoder) -> Decoder:
    """The same models, with nothing learnt yet."""
    return Decoder(
        loaded.target,
        loaded.drafter,
        loaded.tokenizer,
        bundle=loaded.bundle,
        memory=loaded.memory,
    )


def decode(decoder: Decoder, kind: str, prompt: int, config: DecodeConfig) -> tuple[Turn, str]:
    """Decode one prompt; returns its figures and its text."""
    tokens, rounds, seconds, text = 0, 0, 0.0, ""
    began = 0.0
    for event in decoder.stream(PROMPTS[kind][prompt], config, thinking=False):
        now = time.perf_counter()
        if isinstance(event, RoundDone):
            tokens, rounds, seconds = tokens + len(event.tokens), rounds + 1, seconds + now - began
        elif isinstance(event, TurnFinished):
            text = event.text
        began = time.perf_counter()
    tree = config.tree
    return Turn(kind, prompt, tree.budget, tree.graft, tokens, rounds, seconds), text


def row(kind: str, budget: int | str, pairs: list[tuple[Turn, Turn]]) -> str:
    """One line of the table, over all prompts of a kind."""
    plain, grafted = zip(*pairs, strict=True)
    tau = [sum(t.tokens for t in side) / sum(t.rounds for t in side) for side in (plain, grafted)]
    own = [b.tokens * a.rounds / (b.rounds * a.tokens) for a, b in pairs]
    speed = [
        sum(t.tokens for t in side) / sum(t.seconds for t in side) for side in (plain, grafted)
    ]
    low, middle, high = quartiles(a.seconds / b.seconds for a, b in pairs)
    return (
        f"| {kind} B={budget} | {tau[0]:.2f} | {tau[1]:.2f} | {min(own):.2f}–{max(own):.2f}× "
        f"| {speed[0]:.1f} | {speed[1]:.1f} | {middle:.2f}× ({low:.2f}–{high:.2f}) |"
    )


def main() -> None:
    """Measure, print a Markdown table, and write all figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", default="demo")
    parser.add_argument("--method", default="dartree", choices=METHODS[1:])
    parser.add_argument("--budgets", nargs="+", default=["16", "auto"])
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--prompts", type=int, default=6, help="of each kind")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()

    loaded = load(asked.bundle)
    turns: list[Turn] = []
    base = DecodeConfig(max_new_tokens=asked.tokens).with_changes(
        method=asked.method, temperature=asked.temperature
    )
    print("| | τ without | τ with | ratio, per prompt | tok/s without | with | speed |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for word in asked.budgets:
        budget = word if word == "auto" else int(word)
        decoders = {graft: fresh(loaded) for graft in (False, True)}
        for kind, prompts in PROMPTS.items():
            pairs = []
            for prompt in range(min(asked.prompts, len(prompts))):
                found = {}
                for graft in (False, True) if prompt % 2 else (True, False):
                    config = base.with_changes(budget=budget, graft=graft)
                    found[graft] = decode(decoders[graft], kind, prompt, config)
                if found[False][1] != found[True][1]:
                    sys.exit(f"{kind} {prompt}: the texts differ")
                pairs.append((found[False][0], found[True][0]))
                turns += pairs[-1]
            print(row(kind, budget, pairs), flush=True)
    if asked.output is not None:
        report = {
            **models(loaded),
            "load_average": load_average(),
            "turns": [asdict(turn) for turn in turns],
        }
        asked.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""What a speculative round costs on a GPU, against a plain decoding step. Nothing is downloaded.

    python benchmarks/gpu_round.py                         # Qwen3-4B shape, bf16, B=64
    python benchmarks/gpu_round.py --shape qwen3-8b --context 4096 --json round.json
    python benchmarks/gpu_round.py --shape tiny --device cpu   # seconds; a check of the script

Target and drafter have published shapes and random weights, made on the device. Four decoders of
the same weights take turns, one step or round each: plain and DARTree, with CUDA graphs and
without. Random drafts are nearly always wrong, so rounds here emit one token: the figures are
costs, not speed-ups. A round of cost r (in plain steps) that emits t tokens decodes t / r times
as fast as plain decoding.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from dartree_core.bench.roofline import Ceilings, ceilings, pass_work, seconds
from dartree_core.bench.stats import spread
from dartree_core.bench.synthetic import SHAPES, synthetic_decoder
from dartree_core.config import DecodeConfig, Method, SamplingConfig, TreeConfig
from dartree_core.draft.growing import grow
from dartree_core.engine import Decoder
from dartree_core.engine.describe import versions
from dartree_core.engine.verify import VerifyPlan
from dartree_core.errors import DARTreeError
from dartree_core.events import PrefillDone, RoundDone
from dartree_core.models.device import DTYPES, pick_device
from dartree_core.models.graphs import Graphs
from dartree_core.models.lean import LeanTarget

GOAL_ROUND = 1.3
"""Most a round of 64 nodes may cost, in plain steps."""
GOAL_BANDWIDTH = 0.7
"""Least share of the copy bandwidth that a plain step reaches."""
WARM_UP = 8
"""Steps and rounds before timing: what recurs has been recorded by then."""


class Runner:
    """One decoder in the middle of a turn, advanced a round at a time."""

    def __init__(self, name: str, decoder: Decoder, config: DecodeConfig, prompt: list[int]):
        self.name = name
        self.ms: list[float] = []
        self.stages: list[dict[str, float]] = []
        self.nodes: list[int] = []
        self._events = decoder.stream(prompt, config, session=decoder.session(), raw=True)

    def prefill(self) -> None:
        for event in self._events:
            if isinstance(event, PrefillDone):
                return

    def round(self, *, timed: bool) -> None:
        began = time.perf_counter()
        done = next(event for event in self._events if isinstance(event, RoundDone))
        ms = (time.perf_counter() - began) * 1e3
        if timed:
            self.ms.append(ms)
            self.stages.append(dict(done.ms))
            self.nodes.append(sum(done.tree.kept) - 1)

    def figures(self) -> dict[str, Any]:
        stages = {
            stage: round(statistics.median(ms[stage] for ms in self.stages), 4)
            for stage in self.stages[0]
        }
        return {
            **spread("ms", self.ms),
            "stages_ms": stages,
            "nodes": statistics.median(self.nodes),
        }


def main(arguments: list[str] | None = None) -> int:
    args = parse(arguments)
    try:
        device = pick_device(args.device)
    except DARTreeError as error:
        print(f"error: {error.message} {error.remedy}", file=sys.stderr)
        return 2
    say = progress(quiet=args.quiet)
    name = device_name(device)
    say(f"{name}, {args.shape}, {args.dtype}, B={args.budget}, context {args.context}")
    with torch.inference_mode():
        result = measure(args, device, say)
    result = {"device": name, "versions": versions(), "arguments": settings(args), **result}
    report(result)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


def measure(
    args: argparse.Namespace, device: torch.device, say: Callable[[str], None]
) -> dict[str, Any]:
    """All figures."""
    dtype = DTYPES[args.dtype]
    say("measuring what the device could do")
    limits = ceilings(device, dtype, scale=1 / 64 if device.type == "cpu" else 1.0)
    say("making models")
    decoder = synthetic_decoder(args.shape, device, dtype, graphs=False)
    assert isinstance(decoder.target, LeanTarget)
    runners = dict(both_kinds(decoder, args))
    graphs = decoder.target.graphs
    assert graphs is not None
    for runner in runners.values():
        say(f"reading the prompt: {runner.name}")
        runner.prefill()
    say("decoding in turns")
    for step in range(WARM_UP + args.rounds):
        for runner in runners.values():
            runner.round(timed=step >= WARM_UP)
    say("timing the parts")
    parts = part_seconds(decoder, args, device)
    return {
        "path": decoder.target.path,
        "ceilings": asdict(limits),
        "graphs": {
            "recorded": graphs.recorded,
            "replayed": graphs.replayed,
            "failures": graphs.failures,
        },
        "runs": {key: runner.figures() for key, runner in runners.items()},
        "parts_ms": {key: round(value * 1e3, 4) for key, value in parts.items()},
        "verdict": verdict(decoder.target, args, limits, runners, parts),
    }


def both_kinds(decoder: Decoder, args: argparse.Namespace) -> Iterator[tuple[str, Runner]]:
    """Plain and DARTree turns, first with a shape for every pass, then with static ones.

    Sessions keep the kind they were begun with, so all four run on the same weights.
    """
    generator = torch.Generator().manual_seed(1)
    size = decoder.target.vocab_size
    prompt = torch.randint(0, size, (args.context,), generator=generator).tolist()
    drafter = decoder.drafter
    assert isinstance(decoder.target, LeanTarget)
    assert drafter is not None
    rounds = WARM_UP + args.rounds + 1
    length = (rounds + 1) * (drafter.spec.block_size + 1)
    methods: dict[str, Method] = {"ar": "ar", "round": "dartree"}
    for kind in ("eager", "graphs"):
        graphs = Graphs.on(decoder.target.device) if kind == "graphs" else None
        decoder.target.use_static(graphs)
        drafter.use_static(graphs)
        for key, method in methods.items():
            config = DecodeConfig(
                method=method,
                max_new_tokens=length,
                ignore_eos=True,
                tree=TreeConfig(budget=args.budget),
                sampling=SamplingConfig(),
            )
            yield f"{key}_{kind}", Runner(f"{key}, {kind}", decoder, config, prompt)


def part_seconds(
    decoder: Decoder, args: argparse.Namespace, device: torch.device
) -> dict[str, float]:
    """Device seconds of a round's parts, static, each repeated by itself."""
    target, drafter = decoder.target, decoder.drafter
    assert drafter is not None
    cache, context = target.new_cache(), drafter.new_cache()
    tokens = torch.arange(args.context, device=device) % target.vocab_size
    out = target.forward(tokens, cache, taps=drafter.taps, last_only=True)
    cache.commit(torch.arange(args.context, device=device))
    assert out.features is not None
    drafter.extend(out.features, context)
    root = torch.zeros(1, dtype=torch.int64)
    tree_config = TreeConfig(budget=args.budget)
    block = drafter.draft(root, context)

    def build() -> Any:
        return grow(drafter, "dartree", block, root, context, tree_config, block.num_slots)

    tree = build()
    plan = VerifyPlan.of(tree, args.context)
    few = out.features[: drafter.spec.block_size].clone()

    def extend() -> None:
        drafter.extend(few, context)
        context.crop(args.context)

    def verify() -> None:
        target.forward(
            plan.token,
            cache,
            positions=plan.position,
            visible=plan.visible,
            taps=drafter.taps,
        )

    return {
        "plain step": seconds(lambda: target.forward(root, cache), device),
        "context": seconds(extend, device),
        "block": seconds(lambda: drafter.draft(root, context), device),
        "tree": seconds(build, device),
        "layout": seconds(lambda: VerifyPlan.of(tree, args.context), device),
        "verify": seconds(verify, device),
    }


def verdict(
    target: LeanTarget,
    args: argparse.Namespace,
    limits: Ceilings,
    runners: dict[str, Runner],
    parts: dict[str, float],
) -> dict[str, Any]:
    """Shares of the ceilings, the cost of a round, and whether the goals are met.

    A plain step is timed as users get it, the host's work included.
    """
    step = statistics.median(runners["ar_graphs"].ms) / 1e3
    cost = statistics.median(runners["round_graphs"].ms) / 1e3 / step
    rows = int(statistics.median(runners["round_graphs"].nodes)) + 1
    plain, verify = pass_work(target, 1, args.context), pass_work(target, rows, args.context)
    share = plain.bytes / step / limits.bytes_per_s
    return {
        "step_bytes": plain.bytes,
        "step_bandwidth_share": round(share, 4),
        "step_device_bandwidth_share": round(
            plain.bytes / parts["plain step"] / limits.bytes_per_s, 4
        ),
        "verify_rows": rows,
        "verify_flop": verify.flop,
        "verify_flop_share": round(verify.flop / parts["verify"] / limits.flop_per_s, 4),
        "verify_bandwidth_share": round(verify.bytes / parts["verify"] / limits.bytes_per_s, 4),
        "round_in_steps": round(cost, 4),
        "round_goal_met": cost <= GOAL_ROUND,
        "bandwidth_goal_met": share >= GOAL_BANDWIDTH,
    }


def report(result: dict[str, Any]) -> None:
    """Print everything for people."""
    runs, found, limits = result["runs"], result["verdict"], result["ceilings"]
    print(f"\n{result['device']}, {result['path']}")
    print(f"  copy          {limits['bytes_per_s'] / 1e9:10.0f} GB/s")
    print(f"  matrix product{limits['flop_per_s'] / 1e12:10.1f} TFLOP/s\n")
    print("ms, median (quartiles)         eager                        graphs")
    for key, label in (("ar", "plain step"), ("round", "DARTree round")):
        cells = [
            f"{r['ms']:9.3f} ({r['ms_q1']:.3f} to {r['ms_q3']:.3f})"
            for r in (runs[f"{key}_eager"], runs[f"{key}_graphs"])
        ]
        print(f"  {label:15}{cells[0]:>30}{cells[1]:>30}")
    for kind in ("eager", "graphs"):
        stages = runs[f"round_{kind}"]["stages_ms"]
        print(f"  round, {kind}: " + ", ".join(f"{k} {v:.3f}" for k, v in stages.items()))
    print("  parts by themselves: ", end="")
    print(", ".join(f"{k} {v:.3f}" for k, v in result["parts_ms"].items()))
    counts = result["graphs"]
    print(f"  graphs: {counts['recorded']} recorded, {counts['replayed']} replayed")
    for kind, why in counts["failures"].items():
        print(f"  NOT RECORDED, {kind}: {why}")
    print(
        f"\nplain step: {found['step_bytes'] / 1e9:.2f} GB, "
        f"{found['step_bandwidth_share']:.0%} of the copy bandwidth "
        f"({found['step_device_bandwidth_share']:.0%} on the device alone); "
        f"goal {GOAL_BANDWIDTH:.0%}: {met(found['bandwidth_goal_met'])}"
    )
    print(
        f"verify of {found['verify_rows']} rows: {found['verify_flop'] / 1e12:.3f} TFLOP, "
        f"{found['verify_flop_share']:.0%} of the product rate, "
        f"{found['verify_bandwidth_share']:.0%} of the copy bandwidth"
    )
    print(
        f"round: {found['round_in_steps']:.2f} plain steps; "
        f"goal {GOAL_ROUND} at B=64: {met(found['round_goal_met'])}"
    )


def met(goal: bool) -> str:
    return "met" if goal else "MISSED"


def settings(args: argparse.Namespace) -> dict[str, Any]:
    found = {k: v for k, v in vars(args).items() if k not in ("json", "quiet")}
    return {**found, "warm_up": WARM_UP}


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def progress(*, quiet: bool) -> Callable[[str], None]:
    began = time.perf_counter()

    def say(text: str) -> None:
        if not quiet:
            print(f"[{time.perf_counter() - began:6.1f} s] {text}", file=sys.stderr, flush=True)

    return say


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0],
        epilog="Exit status: 0 when everything was measured, whatever the verdict; 2 on bad usage.",
    )
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, cpu")
    parser.add_argument("--shape", default="qwen3-4b", choices=list(SHAPES))
    parser.add_argument("--dtype", default="bf16", choices=list(DTYPES))
    parser.add_argument("--budget", type=positive, default=64, help="nodes verified a round")
    parser.add_argument("--context", type=positive, default=1024, help="tokens of the prompt")
    parser.add_argument("--rounds", type=positive, default=50, help="timed rounds of each kind")
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--quiet", action="store_true", help="no progress on standard error")
    return parser.parse_args(arguments)


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


if __name__ == "__main__":
    raise SystemExit(main())

"""What a round costs when several GPUs hold the target together: predictions from constants.

    python docs/scaling.py                                    # the tables of docs/scaling.md
    torchrun --nproc-per-node 2 docs/scaling.py --measure here.json    # constants of a machine
    python docs/scaling.py --constants here.json              # the tables from those

Nothing is downloaded. Measuring takes seconds; it runs on CUDA where there is any, else on gloo.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

ITEM = 2
"""Bytes of a weight, an activation, a key or a value: bfloat16."""
GPUS = (1, 2, 4, 8)
TREES = (16, 64, 256)
TAUS = (2, 3, 4, 6)
MOST = 1024
"""Trees larger than this are not looked at."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A target.

    Attributes:
        layers, hidden, inner, vocab: Decoder layers, widths, output rows.
        query, kv: Width of all query heads, and of all key heads.
    """

    layers: int
    hidden: int
    inner: int
    vocab: int
    query: int
    kv: int

    @property
    def layer(self) -> int:
        """Weights of one decoder layer's products."""
        return self.hidden * (2 * self.query + 2 * self.kv + 3 * self.inner)

    @property
    def weights(self) -> int:
        """Weights that one pass reads: all layers and the output table."""
        return self.layers * self.layer + self.vocab * self.hidden


SHAPES = {
    "8B": Shape(36, 4096, 12288, 151936, 4096, 1024),
    "32B": Shape(64, 5120, 25600, 151936, 8192, 1024),
    "70B": Shape(80, 8192, 28672, 128256, 8192, 1024),
}
"""Qwen3-8B, Qwen3-32B, Llama-3-70B, from their published configurations."""


@dataclass(frozen=True, slots=True)
class Constants:
    """A machine.

    Attributes:
        source: Where the figures come from.
        bytes_per_s: Memory of one device.
        flop_per_s: Of one device's products.
        link_per_s: Bytes one device sends to its neighbours.
        latency_s: One small all-reduce between two devices; each doubling adds half of it.
        memory: Bytes of one device.
        host_layer_s: Launching one decoder layer from Python, without CUDA graphs.
        head_call_s: One depth of the correction head.
        message_s: Rank 0's packet to the others, once a pass.
        drafter_layers, depth: Of the drafter, and of its tree.
    """

    source: str
    bytes_per_s: float
    flop_per_s: float
    link_per_s: float
    latency_s: float
    memory: float = 141e9
    host_layer_s: float = 0.0
    head_call_s: float = 40e-6
    message_s: float = 100e-6
    drafter_layers: int = 5
    depth: int = 15


H200 = Constants(
    "H200 data sheet (4.8 TB/s, 989 TFLOP/s bfloat16, NVLink 450 GB/s each way), at 80, 60 and "
    "80 % of it, and 12 us for a small NCCL all-reduce of two: assumed, not measured here",
    bytes_per_s=0.8 * 4.8e12,
    flop_per_s=0.6 * 989e12,
    link_per_s=0.8 * 450e9,
    latency_s=12e-6,
)


def collectives(shape: Shape) -> int:
    """Joint operations of one pass, however many rows it has: two all-reduces a layer, one for
    the embedding, and one gather of the logits."""
    return 2 * shape.layers + 2


def pass_s(shape: Shape, c: Constants, gpus: int, rows: int, context: int) -> float:
    """Seconds of one target pass over `rows` rows behind `context` positions."""
    cached = 2 * shape.layers * shape.kv * (context + rows)
    moving = (shape.weights + cached) * ITEM / gpus / c.bytes_per_s
    attention = 4 * shape.layers * shape.query * rows * (context + rows)
    computing = (2 * rows * shape.weights + attention) / gpus / c.flop_per_s
    device = max(moving, computing) + joint_s(shape, c, gpus, rows)
    return max(device, c.host_layer_s * shape.layers)


def joint_s(shape: Shape, c: Constants, gpus: int, rows: int) -> float:
    """The part of a pass that goes into joint operations."""
    if gpus == 1:
        return 0.0
    doublings = gpus.bit_length() - 1
    latency = c.latency_s * (1 + doublings) / 2
    ring = 2 * (gpus - 1) / gpus
    reduced = (2 * shape.layers + 1) * rows * shape.hidden * ITEM * ring
    gathered = rows * shape.vocab * ITEM * (gpus - 1) / gpus
    return collectives(shape) * latency + (reduced + gathered) / c.link_per_s + c.message_s


def draft_s(shape: Shape, c: Constants) -> float:
    """Seconds of drafting: one pass of the drafter, whole on one device, then the head."""
    weights = c.drafter_layers * shape.layer + shape.vocab * shape.hidden
    moving = weights * ITEM / c.bytes_per_s
    return max(moving, c.host_layer_s * c.drafter_layers) + c.depth * c.head_call_s


def round_cost(shape: Shape, c: Constants, gpus: int, nodes: int, context: int) -> float:
    """A round that verifies `nodes` nodes, in plain steps: the acceptance length it must reach to
    be no slower than plain decoding."""
    plain = pass_s(shape, c, gpus, 1, context)
    return (draft_s(shape, c) + pass_s(shape, c, gpus, nodes + 1, context)) / plain


def break_even(shape: Shape, c: Constants, gpus: int, tau: float, context: int) -> int:
    """The largest tree that is no slower than plain decoding when a round emits `tau` tokens; 0
    where none is."""
    fits = [n for n in range(1, MOST + 1) if round_cost(shape, c, gpus, n, context) <= tau]
    return max(fits, default=0)


# Measuring


def median_s(work: Callable[[], Any], wait: Callable[[], None], repeats: int = 30) -> float:
    """Median seconds of `work`, after three runs that do not count."""
    times = []
    for at in range(repeats + 3):
        wait()
        began = time.perf_counter()
        work()
        wait()
        times.append(time.perf_counter() - began)
        if at == 2:
            times.clear()
    return statistics.median(times)


def measure(repeats: int = 30, scale: float = 0.1) -> Constants | None:
    """Constants of this machine, by two or more processes under torchrun; None but in rank 0."""
    import torch
    import torch.distributed as dist

    from dartree_core.bench.roofline import ceilings

    cuda = torch.cuda.is_available()
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")

    def wait() -> None:
        if cuda:
            torch.cuda.synchronize()

    dtype = torch.bfloat16 if cuda else torch.float32
    small = torch.zeros(4096, dtype=dtype, device=device)
    large = torch.zeros(8 << 20, dtype=dtype, device=device)
    packet = torch.zeros(4096, dtype=torch.uint8)
    latency = median_s(lambda: dist.all_reduce(small), wait, repeats)
    full = median_s(lambda: dist.all_reduce(large), wait, max(3, repeats // 5))
    message = median_s(lambda: dist.broadcast(packet, 0), wait, repeats)
    size = dist.get_world_size()
    doublings = size.bit_length() - 1
    sent = large.numel() * large.element_size() * 2 * (size - 1) / size
    found = None
    if dist.get_rank() == 0:
        top = ceilings(device, dtype, scale=1.0 if cuda else scale)
        name = torch.cuda.get_device_name(device) if cuda else "CPU, gloo"
        found = Constants(
            f"measured: {name}, {size} processes",
            bytes_per_s=top.bytes_per_s,
            flop_per_s=top.flop_per_s,
            link_per_s=sent / max(full - latency, 1e-9),
            latency_s=latency / ((1 + doublings) / 2),
            message_s=message,
        )
    dist.barrier()
    dist.destroy_process_group()
    return found


# Tables


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def costs_table(c: Constants, context: int) -> str:
    """Plain steps, joint share, and rounds of several sizes."""
    head = ["target", "GPUs", "GB each", "plain step ms", "of it joint"]
    head += [f"round of {n}: ms, needs τ" for n in TREES]
    rows = []
    for name, shape in SHAPES.items():
        for gpus in GPUS:
            plain = pass_s(shape, c, gpus, 1, context)
            joint = joint_s(shape, c, gpus, 1)
            part = shape.weights * ITEM / gpus
            fits = part <= 0.9 * c.memory
            row = [name, str(gpus), f"{part / 1e9:.0f}" + ("" if fits else " (too large)")]
            row += [f"{plain * 1e3:.2f}", f"{joint / plain:.0%}"]
            for nodes in TREES:
                cost = round_cost(shape, c, gpus, nodes, context)
                row.append(f"{cost * plain * 1e3:.2f}, {cost:.2f}")
            rows.append(row)
    return table(head, rows)


def break_even_table(c: Constants, context: int) -> str:
    """The largest tree that is no slower than plain decoding."""
    rows = []
    for name, shape in SHAPES.items():
        for gpus in GPUS:
            sizes = [break_even(shape, c, gpus, tau, context) for tau in TAUS]
            shown = [f">{MOST - 1}" if n == MOST else str(n or "none") for n in sizes]
            rows.append([name, str(gpus), *shown])
    return table(["target", "GPUs", *(f"τ = {tau}" for tau in TAUS)], rows)


def main() -> None:
    """Print tables, or measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--constants", type=Path, help="JSON of another machine")
    parser.add_argument("--measure", type=Path, help="write this machine's constants here")
    parser.add_argument("--context", type=int, default=2048, help="positions before a round")
    parser.add_argument(
        "--host-layer-us", type=float, default=0.0, help="launching a layer without CUDA graphs"
    )
    args = parser.parse_args()
    if args.measure is not None:
        found = measure()
        if found is not None:
            args.measure.write_text(json.dumps(asdict(found), indent=1) + "\n", encoding="utf-8")
        return
    c = H200
    if args.constants is not None:
        c = Constants(**json.loads(args.constants.read_text(encoding="utf-8")))
    if args.host_layer_us:
        c = replace(c, host_layer_s=args.host_layer_us * 1e-6)
    print(f"Constants: {c.source}.\n")
    print(costs_table(c, args.context))
    print("\nLargest tree that is no slower than plain decoding:\n")
    print(break_even_table(c, args.context))


if __name__ == "__main__":
    main()

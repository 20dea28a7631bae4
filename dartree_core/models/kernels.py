"""Matrix products for small batches of rows: the kernel that decides decoding speed on a CPU.

A decoding step multiplies every weight with 1 row, a verification with perhaps 16. Libraries are
tuned for neither, and which kernel wins differs between machines, so the candidates for a dtype
are timed once, on the model's own shapes, and the choice is remembered.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

Linear: TypeAlias = Callable[[Tensor], Tensor]
"""float32 rows `[n, in]` to rows `[n, out]`."""

_ROWS = (1, 8)
"""Batch sizes timed: a plain step and a typical small tree."""
_REPEATS = 5


def dense(weight: Tensor, bias: Tensor | None) -> Linear:
    """PyTorch's own product, in the weight's dtype, on any device."""
    return lambda x: F.linear(x, weight, bias)


def onednn(weight: Tensor, bias: Tensor | None) -> Linear:
    """float32 through oneDNN with the weight laid out for it once (exact, CPU)."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    run = torch.ops.mkldnn._linear_pointwise
    return lambda x: run(x, packed, bias, "none", [], "")


def fbgemm_half(weight: Tensor, bias: Tensor | None) -> Linear:
    """float16 weights, float32 activations and sums, through FBGEMM (CPU).

    Half the memory traffic of float32. Rounding is in the weights alone, once, so every row is
    computed as it would be alone.
    """
    packed = torch.ops.quantized.linear_prepack_fp16(weight.float().contiguous(), bias)
    run = torch.ops.quantized.linear_dynamic_fp16
    return lambda x: run(x, packed)


KERNELS: dict[str, Callable[[Tensor, Tensor | None], Linear]] = {
    "dense": dense,
    "onednn": onednn,
    "fbgemm-fp16": fbgemm_half,
}


def has_fbgemm() -> bool:
    """True when this PyTorch and CPU can run `fbgemm_half`."""
    return "fbgemm" in torch.backends.quantized.supported_engines


def candidates(device: torch.device, dtype: torch.dtype) -> tuple[str, ...]:
    """Kernels that keep weights of `dtype` as they are, on `device`."""
    if device.type != "cpu":
        return ("dense",)
    if dtype == torch.float16 and has_fbgemm():
        return ("fbgemm-fp16",)
    if dtype == torch.float32 and torch.backends.mkldnn.is_available():
        return ("dense", "onednn")
    return ("dense",)


def choose(weight: Tensor, names: Sequence[str], memory: Path | None = None) -> str:
    """The fastest of the named kernels for products with `weight` on this machine.

    Args:
        weight: A typical weight of the model, `[out, in]`.
        names: Candidates, see `candidates`.
        memory: File that remembers measurements; None measures anew.
    """
    if len(names) == 1:
        return names[0]
    key = _key(weight, names)
    known = _recall(memory)
    if known.get(key) in names:
        return str(known[key])
    kernels = {name: KERNELS[name](weight, None) for name in names}
    best = min(kernels, key=lambda name: _seconds(kernels[name], weight.shape[1]))
    if memory is not None:
        _remember(memory, {**known, key: best})
    return best


def _seconds(kernel: Linear, width: int) -> float:
    """Best time over the typical batch sizes, each by its fastest run."""
    total = 0.0
    for rows in _ROWS:
        x = torch.randn(rows, width)
        times = []
        for _ in range(_REPEATS):
            began = time.perf_counter()
            kernel(x)
            times.append(time.perf_counter() - began)
        total += min(times)
    return total


def _key(weight: Tensor, names: Sequence[str]) -> str:
    import platform

    parts: list[Any] = [platform.machine(), platform.processor(), torch.get_num_threads()]
    parts += [torch.__version__, tuple(weight.shape), *names]
    return " ".join(str(part) for part in parts)


def _recall(memory: Path | None) -> dict[str, Any]:
    if memory is None:
        return {}
    try:
        found = json.loads(memory.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _remember(memory: Path, known: dict[str, Any]) -> None:
    """Best effort: a read-only cache only costs the next start a measurement."""
    partial = memory.with_suffix(".tmp")
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(known, indent=1), encoding="utf-8")
        partial.replace(memory)
    except OSError:
        return

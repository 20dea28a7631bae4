"""Matrix products for small batches of rows: the kernel that decides decoding speed on a CPU.

A decoding step multiplies every weight with 1 row, a verification with perhaps 16. Libraries are
tuned for neither, and which kernel wins differs between machines, so the candidates for a dtype
are timed once, on the model's own shapes, and the choice is remembered.
"""

from __future__ import annotations

import math
import platform
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dartree_core import compiled
from dartree_core.models.memory import Memory

if TYPE_CHECKING:
    from dartree_core.compiled.products import Panels

Linear: TypeAlias = Callable[[Tensor], Tensor]
"""float32 rows `[n, in]` to rows `[n, out]`."""

_ROWS = (1, 8)
"""Batch sizes timed: a plain step and a typical small tree."""
TYPICAL = 8192
"""Outputs of a product worth timing: what a call costs in itself is little beside it, and its
weights come from memory, as a pass's do."""
_REPEATS = 7
_OTHERS = 64 << 20
"""Bytes read between two products that are timed, as other layers' weights are: no cache still
holds the weights when their turn comes again."""
_BY_ITSELF = 1.3
"""Factor by which a library's product must be faster than our own to be preferred: with ours,
whole passes run in compiled code, and what lies between products takes a third of them
otherwise."""


def _op(packet: Any) -> Any:
    """An operator without looking its only overload up in every call, which takes as long as
    multiplying a row does."""
    return packet.default


def dense(weight: Tensor, bias: Tensor | None) -> Linear:
    """PyTorch's own product, in the weight's dtype, on any device."""
    return lambda x: F.linear(x, weight, bias)


def onednn(weight: Tensor, bias: Tensor | None) -> Linear:
    """float32 through oneDNN with the weight laid out for it once (exact, CPU)."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    run = _op(torch.ops.mkldnn._linear_pointwise)
    return lambda x: run(x, packed, bias, "none", [], "")


def fbgemm_half(weight: Tensor, bias: Tensor | None) -> Linear:
    """float16 weights, float32 activations and sums, through FBGEMM (CPU).

    Half the memory traffic of float32. Rounding is in the weights alone, once, so every row is
    computed as it would be alone.
    """
    packed = torch.ops.quantized.linear_prepack_fp16(weight.float().contiguous(), bias)
    run = _op(torch.ops.quantized.linear_dynamic_fp16)
    return lambda x: run(x, packed)


def panels_float16(weight: Tensor, bias: Tensor | None) -> Linear:
    """float16 weights, float32 activations and sums, by our own compiled loops (CPU).

    As exact as `fbgemm_half`, and a few rows cost no more than what reading the weights takes.
    """
    from dartree_core.compiled.products import Panels

    return Panels(weight, bias, torch.float16)


def panels_float32(weight: Tensor, bias: Tensor | None) -> Linear:
    """float32 by our own compiled loops (CPU)."""
    from dartree_core.compiled.products import Panels

    return Panels(weight, bias, torch.float32)


def panels_bfloat16(weight: Tensor, bias: Tensor | None) -> Linear:
    """bfloat16 weights and rows, float32 sums, by our own compiled loops (CPU).

    What models of this type compute with: half the arithmetic of `panels_float16`, where rows are
    not rounded. A row is rounded as it would be alone.
    """
    from dartree_core.compiled.products import Panels

    return Panels(weight, bias, torch.bfloat16)


def panels_int8(weight: Tensor, bias: Tensor | None) -> Linear:
    """8-bit products and int32 sums of float32 rows, by our own compiled loops (CPU).

    Weights are rounded with a scale per output, rows with a scale each.
    """
    from dartree_core.compiled.products import Panels

    return Panels(weight, bias, torch.int8)


def onednn_bfloat16(weight: Tensor, bias: Tensor | None) -> Linear:
    """bfloat16 products and float32 sums through oneDNN, of float32 rows (CPU).

    Rows are rounded too, and the more there are the faster it is: for training and batches, not
    for decoding.
    """
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.to(torch.bfloat16), None)
    bias = None if bias is None else bias.to(torch.bfloat16)
    run = _op(torch.ops.mkldnn._linear_pointwise)
    return lambda x: run(x.to(torch.bfloat16), packed, bias, "none", [], "").to(x.dtype)


def int8(weight: Tensor, bias: Tensor | None) -> Linear:
    """8-bit products and int32 sums through PyTorch's quantised kernels, of float32 rows (CPU).

    Weights are rounded with a scale per output, rows with one scale a call: a row's result
    depends on the others of its call. Rows lose another bit on CPUs without VNNI, which add
    pairs of products in 16 bits.
    """
    weight = weight.float()
    scales = weight.abs().amax(dim=1).clamp(min=1e-12) / 127
    levels = (weight / scales[:, None]).round().to(torch.int8)
    zeros = torch.zeros(len(weight), dtype=torch.int64)
    with warnings.catch_warnings():
        # PyTorch is to lose this type of tensor; `has_int8` asks whether it still has it.
        warnings.simplefilter("ignore")
        quantised = torch._make_per_channel_quantized_tensor(levels, scales, zeros, 0)
    packed = torch.ops.quantized.linear_prepack(quantised, bias)
    run = _op(torch.ops.quantized.linear_dynamic)
    narrow = not getattr(torch.cpu, "_is_vnni_supported", bool)()
    return lambda x: run(x, packed, narrow)


KERNELS: dict[str, Callable[[Tensor, Tensor | None], Linear]] = {
    "dense": dense,
    "onednn": onednn,
    "fbgemm-fp16": fbgemm_half,
    "panels-fp16": panels_float16,
    "panels-fp32": panels_float32,
    "panels-bf16": panels_bfloat16,
}
"""By name, those that compute what the weights say."""

ROUNDING: dict[str, Callable[[Tensor, Tensor | None], Linear]] = {
    "onednn-bf16": onednn_bfloat16,
    "int8": int8,
    "panels-int8": panels_int8,
}
"""Those that round rows and results as well; never chosen for a target that decodes."""


PANELS = {
    torch.float16: "panels-fp16",
    torch.float32: "panels-fp32",
    torch.int8: "panels-int8",
    torch.bfloat16: "panels-bf16",
}
"""Our own, by the type of the weights they keep."""


def panels(run: Linear) -> Panels:
    """The same product, which is on one of `PANELS`."""
    from dartree_core.compiled.products import Panels

    assert isinstance(run, Panels)
    return run


def named(name: str) -> Callable[[Tensor, Tensor | None], Linear]:
    """A kernel of either kind."""
    return KERNELS.get(name) or ROUNDING[name]


class Packed(nn.Module):
    """A linear module whose weight lives in a kernel's own layout.

    Attributes:
        run: The kernel, for callers who want nothing of a module.
    """

    def __init__(self, linear: nn.Linear, kernel: str) -> None:
        super().__init__()
        bias = None if linear.bias is None else linear.bias.detach()
        self.run = named(kernel)(linear.weight.detach(), bias)

    def forward(self, x: Tensor) -> Tensor:
        """`[..., in]` to `[..., out]`."""
        return self.run(x)


def pack(module: nn.Module, kernel: str) -> None:
    """Replace every linear module below `module`; its weights cannot be read or saved after."""
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear):
            setattr(module, name, Packed(child, kernel))
        else:
            pack(child, kernel)


class Part(nn.Module):
    """Some outputs of a product that several linear modules share."""

    def __init__(self, run: Linear, start: int, end: int) -> None:
        super().__init__()
        self._run, self._start, self._end = run, start, end

    def forward(self, x: Tensor) -> Tensor:
        """`[..., in]` to `[..., end - start]`."""
        return self._run(x)[..., self._start : self._end]


def fuse(parent: nn.Module, names: Sequence[str], kernel: str) -> Linear:
    """One product for several linear modules of the same input, which become `Part`s of it.

    Args:
        parent: Module they are attributes of.
        names: Their names, in the order of the product's outputs; none has a bias.
        kernel: See `named`.
    """
    weights = [getattr(parent, name).weight.detach() for name in names]
    run = named(kernel)(torch.cat(weights), None)
    start = 0
    for name, weight in zip(names, weights, strict=True):
        setattr(parent, name, Part(run, start, start + len(weight)))
        start += len(weight)
    return run


def has_fbgemm() -> bool:
    """True when this PyTorch and CPU can run `fbgemm_half`."""
    return "fbgemm" in torch.backends.quantized.supported_engines


def has_bfloat16() -> bool:
    """True where this CPU can run `panels_bfloat16`."""
    return compiled.sharing() and can_have_bfloat16()


def can_have_bfloat16() -> bool:
    """True where it could, once code is compiled."""
    if not compiled.can_share():
        return False
    from dartree_core.compiled.cpu import multiplies_bfloat16

    return multiplies_bfloat16()


def has_int8() -> bool:
    """True when this PyTorch and CPU can run `int8`."""
    return has_fbgemm() and hasattr(torch, "_make_per_channel_quantized_tensor")


def candidates(device: torch.device, dtype: torch.dtype, rows: torch.dtype) -> tuple[str, ...]:
    """Kernels that keep weights of `dtype` as they are, on `device`, and multiply `rows`."""
    if device.type != "cpu" or rows != torch.float32:
        return ("dense",)
    found = []
    if dtype == torch.float16 and has_fbgemm():
        found = ["fbgemm-fp16"]
    elif dtype == torch.float32 and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        found = ["dense", "onednn"]
    if has_bfloat16() if dtype == torch.bfloat16 else compiled.sharing() and dtype in PANELS:
        found.append(PANELS[dtype])
    return tuple(found) or ("dense",)


def rounding(device: torch.device, rows: torch.dtype = torch.float32) -> tuple[str, ...]:
    """Kernels on `device` for products of `rows` that need not be exact, such as drafts'."""
    if device.type != "cpu" or rows != torch.float32:
        return ()
    found = ["int8"] if has_int8() else []
    if compiled.sharing():
        from dartree_core.compiled.cpu import multiplies_int8

        if multiplies_int8():
            found.append(PANELS[torch.int8])
    return tuple(found)


def choose(
    weight: Tensor, names: Sequence[str], memory: Memory, rows: Sequence[int] = _ROWS
) -> str:
    """The fastest of the named kernels for products with `weight` on this machine.

    Args:
        weight: A typical weight of the model, `[out, in]`.
        names: Candidates, see `candidates`.
        memory: Where measurements are kept.
        rows: Batch sizes that count.
    """
    if len(names) == 1:
        return names[0]
    key = _key(weight, names, rows)
    known = memory.recall(key)
    if known in names:
        return str(known)
    own = PANELS.values()
    seconds = _seconds({name: named(name)(weight, None) for name in names}, weight.shape[1], rows)
    best = min(names, key=lambda name: seconds[name] * (1 if name in own else _BY_ITSELF))
    memory.remember(key, best)
    return best


def _seconds(kernels: Mapping[str, Linear], width: int, rows: Sequence[int]) -> dict[str, float]:
    """Time over batch sizes, each by its fastest run. Kernels take turns: whatever else the
    machine does meanwhile then hits all of them."""
    total = dict.fromkeys(kernels, 0.0)
    others = torch.ones(_OTHERS, dtype=torch.int8).view(torch.float32)
    for count in rows:
        x = torch.randn(count, width)
        best = dict.fromkeys(kernels, math.inf)
        for _ in range(_REPEATS):
            for name, run in kernels.items():
                others.sum()
                began = time.perf_counter()
                run(x)
                best[name] = min(best[name], time.perf_counter() - began)
        for name in kernels:
            total[name] += best[name]
    return total


def _key(weight: Tensor, names: Sequence[str], rows: Sequence[int]) -> str:
    parts: list[object] = [
        "kernel",
        platform.machine(),
        platform.processor(),
        torch.get_num_threads(),
    ]
    parts += [torch.__version__, weight.dtype, tuple(weight.shape), tuple(rows), *names]
    return " | ".join(str(part) for part in parts)

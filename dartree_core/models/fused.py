"""The fused path on CUDA: five small kernels a layer beside its four products.

A recorded pass launches for free, but each of its kernels still takes a few microseconds, and a
plain step of a small model is only a few milliseconds. PyTorch's own operations make some thirty
kernels of a layer.

Kernels are compared with PyTorch's operations when they are first made, on this device; where
they fail or disagree they are not used.
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dartree_core.models.arithmetic import Arithmetic

if TYPE_CHECKING:
    from dartree_core.models.lean import LeanTarget

log = logging.getLogger(__name__)

ENV = "DARTREE_FUSED"
"""Environment variable: 0 leaves everything to PyTorch's operations."""
_DTYPES = {torch.float16, torch.bfloat16}
"""float32 is left to PyTorch: its output must not depend on who rounds."""
_HEAD_DIMS = {32, 64, 128, 256}
_GATE_BLOCK = 1024
_KEY_BLOCK = 64
_MOST_SPLITS = 32
_CHECKED_ROWS = (1, 3, 48)
_CHECKED_LENGTH = 150
_TOLERANCE = 0.03
"""Of the largest number: about what a few roundings to bfloat16 amount to."""


class Fused(Arithmetic):
    """Triton kernels for one model.

    Args:
        heads, kv_heads, head_dim: Of its attention.
        eps: Of its norms.
        dtype: Of its activations.
        processors: Multiprocessors of the device: attention is split to occupy them.
    """

    name = "fused"

    def __init__(
        self,
        heads: int,
        kv_heads: int,
        head_dim: int,
        eps: float,
        dtype: torch.dtype,
        processors: int,
    ) -> None:
        from dartree_core.models import triton_kernels

        self._kernels: Any = triton_kernels
        self._heads, self._kv, self._dim = heads, kv_heads, head_dim
        self._eps, self._dtype, self._processors = eps, dtype, processors
        self._bound = 65504.0 if dtype == torch.float16 else 0.0

    @classmethod
    def of(cls, target: LeanTarget, processors: int) -> Fused:
        """Kernels for a target."""
        shape = (target.num_heads, target.kv_heads, target.head_dim)
        return cls(*shape, target.eps, target.dtype, processors)

    def resized(self, heads: int, kv_heads: int, head_dim: int, eps: float) -> Fused | None:
        """The same for another model on the device, or None where its heads do not fit."""
        if head_dim not in _HEAD_DIMS:
            return None
        return Fused(heads, kv_heads, head_dim, eps, self._dtype, self._processors)

    def add_norm(
        self, x: Tensor, delta: Tensor | None, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """See `Arithmetic.add_norm`."""
        rows, width = x.shape
        total = x if delta is None else torch.empty_like(x)
        normed = torch.empty_like(x)
        self._kernels.add_norm[(rows,)](
            x,
            x if delta is None else delta,
            weight,
            total,
            normed,
            width,
            eps,
            ADDS=delta is not None,
            BLOCK=_power_of_2(width),
            num_warps=8 if width > 2048 else 4,
        )
        return total, normed

    def gated(self, gate_up: Tensor) -> Tensor:
        """See `Arithmetic.gated`."""
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty(rows, width)
        self._kernels.gated[(rows, -(-width // _GATE_BLOCK))](
            gate_up, out, width, BLOCK=_GATE_BLOCK
        )
        return out

    def attend(
        self,
        norms: tuple[Tensor, Tensor] | None,
        qkv: Tensor,
        data: Tensor,
        tables: tuple[Tensor, Tensor],
        positions: Tensor,
        length: Tensor,
        visible: Tensor,
    ) -> Tensor:
        """Norm, rotate and keep keys and values of a pass's rows, then attend.

        Args:
            norms: Weights of the norms of queries and keys `[D]`, or None without such norms.
            qkv: `[n, (heads + 2 * kv) * D]`, fused projections.
            data: `[2, kv, capacity, D]`, the layer's cache.
            tables: Cosines and sines `[capacity, D]`.
            positions: int64 `[n]`.
            length: int64 `[1]`, committed positions.
            visible: bool `[n, n]`, contiguous.

        Returns:
            `[n, heads * D]`.
        """
        n, stride = len(qkv), data.stride(1)
        keys, values = data
        cos, sin = tables
        q = qkv.new_empty(n, self._heads, self._dim)
        q_norm, k_norm = norms or (qkv, qkv)
        self._kernels.rotate_store[(n, self._heads + 2 * self._kv)](
            qkv,
            q_norm,
            k_norm,
            cos,
            sin,
            positions,
            length,
            q,
            keys,
            values,
            stride,
            self._eps,
            HEADS=self._heads,
            KV=self._kv,
            DIM=self._dim,
            NORMS=norms is not None,
            BOUND=self._bound,
            num_warps=1,
        )
        members = self._heads // self._kv * n
        block = min(64, max(16, _power_of_2(members)))
        blocks = -(-members // block)
        splits = self._splits(blocks)
        lines = n * self._heads
        part = torch.empty(splits, lines, self._dim, device=q.device)
        peak, mass = (torch.empty(splits, lines, device=q.device) for _ in range(2))
        self._kernels.attend_part[(blocks, self._kv, splits)](
            q,
            keys,
            values,
            visible.view(torch.uint8),
            length,
            part,
            peak,
            mass,
            stride,
            n,
            self._dim**-0.5,
            HEADS=self._heads,
            KV=self._kv,
            DIM=self._dim,
            SPLITS=splits,
            M=block,
            N=_KEY_BLOCK,
            PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
            num_warps=4,
        )
        out = torch.empty_like(q)
        self._kernels.attend_join[(lines,)](
            part,
            peak,
            mass,
            out,
            lines,
            DIM=self._dim,
            SPLITS=splits,
            num_warps=2,
        )
        return out.view(n, self._heads * self._dim)

    def _splits(self, blocks: int) -> int:
        """Parts of the keys, so that about every processor gets one; few different numbers,
        since a kernel is compiled for each."""
        share = max(1, min(_MOST_SPLITS, self._processors // (blocks * self._kv)))
        return 1 << (share.bit_length() - 1)


def fused_for(target: LeanTarget) -> Fused | None:
    """Kernels for a target, or None where they do not apply or do not pass `check`."""
    if (
        target.device.type != "cuda"
        or target.dtype not in _DTYPES
        or target.head_dim not in _HEAD_DIMS
        or os.environ.get(ENV, "").strip() == "0"
    ):
        return None
    try:
        import triton  # noqa: F401
    except ImportError:
        return None
    processors = torch.cuda.get_device_properties(target.device).multi_processor_count
    try:
        with torch.cuda.device(target.device):
            fused = Fused.of(target, processors)
            check(fused, target)
    except Exception as error:  # compilers fail in many ways, and none may stop a decoder
        log.warning(
            "Fused kernels are off for this run, and passes are slower: %s (%s). Set %s=0 to "
            "start without them.",
            type(error).__name__,
            (str(error).strip().splitlines() or ["no reason"])[0],
            ENV,
        )
        return None
    return fused


@torch.inference_mode()
def check(fused: Fused, target: LeanTarget) -> None:
    """Compare every kernel with PyTorch's operations, on random rows of the target's shapes.

    Raises:
        AssertionError: They disagree by more than rounding.
    """
    device, dtype = target.device, target.dtype
    generator = torch.Generator(device).manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    def gains(size: int) -> Tensor:
        # Not the model's: large ones would turn rounding of scores into other weights.
        return (torch.rand(size, generator=generator, device=device) + 0.5).to(dtype)

    def same(ours: Tensor, theirs: Tensor) -> None:
        largest = max(1.0, float(theirs.abs().max()))
        torch.testing.assert_close(ours.float(), theirs.float(), atol=_TOLERANCE * largest, rtol=0)

    plain, layer, dim = Arithmetic(), target.decoder_layers[0], target.head_dim
    normed = layer.q_norm is not None
    layer = replace(
        layer,
        mlp_norm=gains(target.hidden_size),
        q_norm=gains(dim) if normed else None,
        k_norm=gains(dim) if normed else None,
    )
    length = torch.tensor([_CHECKED_LENGTH], device=device)
    tables = target.rope_tables(_CHECKED_LENGTH + max(_CHECKED_ROWS))
    for rows in _CHECKED_ROWS:
        x, delta = random(rows, target.hidden_size), random(rows, target.hidden_size)
        for added in (None, delta):
            given = (added, layer.mlp_norm, target.eps)
            for ours, theirs in zip(
                fused.add_norm(x, *given), plain.add_norm(x, *given), strict=True
            ):
                same(ours, theirs)
        both = random(rows, 2 * target.config.intermediate_size)
        same(fused.gated(both), plain.gated(both))
        qkv = random(rows, (target.num_heads + 2 * target.kv_heads) * dim)
        end = _CHECKED_LENGTH + rows
        ours_data = random(2, target.kv_heads, end + 7, dim)
        data = ours_data.clone()
        visible = torch.rand(rows, rows, generator=generator, device=device) < 0.5
        visible |= torch.eye(rows, dtype=torch.bool, device=device)
        # Positions as in a tree: siblings share one.
        positions = length + torch.arange(rows, device=device) // 2
        cos, sin = (table[positions] for table in tables)
        q, k, v = target.heads(layer, qkv, cos, sin)
        data[0, :, _CHECKED_LENGTH:end], data[1, :, _CHECKED_LENGTH:end] = k, v
        seen = torch.cat((visible.new_ones(rows, _CHECKED_LENGTH), visible), dim=1)
        mask = seen.repeat(target.num_heads // target.kv_heads, 1)
        theirs = target.attention(q, data[0, :, :end], data[1, :, :end], mask)
        ours = fused.attend(layer.norms, qkv, ours_data, tables, positions, length, visible)
        same(ours, theirs)
        same(ours_data, data)


def _power_of_2(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()

"""Run by `test_fused.py`: compile every fused kernel for a GPU that is not here."""

from __future__ import annotations

import sys
from typing import Any

from triton import compile as compile_kernel
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from dartree_core.models import triton_kernels

POINTERS = {"keys", "values", "q", "q_out", "qkv", "x", "delta", "weight", "total", "normed"}
POINTERS |= {"gate_up", "out", "q_weight", "k_weight", "cos", "sin"}
TYPES = {
    **dict.fromkeys(POINTERS, "*bf16"),
    **dict.fromkeys(("part", "peak", "mass"), "*fp32"),
    **dict.fromkeys(("positions", "length"), "*i64"),
    **dict.fromkeys(("width", "count", "lines", "head_stride"), "i32"),
    **dict.fromkeys(("eps", "scale"), "fp32"),
    "visible": "*u8",
}
HEADS = {"HEADS": 32, "KV": 8, "DIM": 128}
ATTEND = {**HEADS, "N": 64, "PRECISION": "tf32"}
KERNELS: dict[str, list[tuple[dict[str, Any], int]]] = {
    "add_norm": [({"ADDS": adds, "BLOCK": 4096}, 8) for adds in (True, False)],
    "gated": [({"BLOCK": 1024}, 4)],
    "rotate_store": [
        ({**HEADS, "NORMS": True, "BOUND": 0.0}, 1),
        ({**HEADS, "NORMS": False, "BOUND": 65504.0}, 1),
    ],
    "attend_part": [
        ({**ATTEND, "SPLITS": 16, "M": 16, "count": 1}, 4),  # a plain step: 1 is a constant
        ({**ATTEND, "SPLITS": 2, "M": 64}, 4),  # a tree of 64
    ],
    "attend_join": [({"DIM": 128, "SPLITS": 16}, 2)],
}
"""Constants and warps at the shapes of Qwen3-4B."""


def main() -> None:
    for name, variants in KERNELS.items():
        kernel = getattr(triton_kernels, name)
        for constants, warps in variants:
            names = {p: TYPES.get(p, "constexpr") for p in kernel.arg_names}
            signature = names | dict.fromkeys(constants, "constexpr")
            assert {p for p, t in signature.items() if t == "constexpr"} == set(constants)
            source = ASTSource(kernel, signature=signature, constexprs=constants)
            target = GPUTarget("cuda", 90, 32)
            built = compile_kernel(source, target=target, options={"num_warps": warps})
            assert built.asm["cubin"]
            print(name, built.metadata.shared, "bytes of shared memory")


if __name__ == "__main__":
    sys.exit(main())

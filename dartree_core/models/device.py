"""Where and in which precision to run, when the user does not say."""

from __future__ import annotations

import torch

from dartree_core.errors import ConfigError
from dartree_core.models.kernels import has_bfloat16, has_fbgemm

DTYPES = {
    "float32": torch.float32,
    "fp32": torch.float32,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
    "fp16": torch.float16,
}

_KINDS = ("cpu", "cuda", "mps")


def pick_device(name: str = "auto") -> torch.device:
    """The named device; "auto" prefers CUDA, then Apple's MPS, then the CPU.

    Raises:
        ConfigError: There is no such device here.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        if torch.backends.mps.is_available():
            return torch.device("mps")
        return torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in _KINDS:
        raise ConfigError(
            f"There is no kind of device called {name!r} to decode on.",
            "Use auto, cpu, cuda, cuda:1 or mps.",
        )
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"Device {name} was asked for, but this PyTorch sees no CUDA device.",
            "Use --device cpu, or install a CUDA build of PyTorch and a driver.",
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"Device {name} was asked for, but there are {torch.cuda.device_count()} CUDA devices.",
            "Count from cuda:0.",
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("Device mps was asked for, but is not available.", "Use --device cpu.")
    return device


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """The named dtype of weights.

    "auto" is what runs fastest and computes well: bfloat16 where the device multiplies it, in
    compiled code on a CPU; else on a CPU float16 weights under float32 arithmetic where FBGEMM has
    the kernel, or float32; elsewhere float16.

    Raises:
        ConfigError: The name is unknown.
    """
    if name == "auto":
        if device.type == "cpu":
            if has_bfloat16():
                return torch.bfloat16
            return torch.float16 if has_fbgemm() else torch.float32
        if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
            return torch.bfloat16
        return torch.float16
    if name not in DTYPES:
        raise ConfigError(f"There is no dtype {name!r}.", "Use auto, float32, bfloat16 or float16.")
    return DTYPES[name]

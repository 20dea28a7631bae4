"""Devices and dtypes by name."""

from __future__ import annotations

import pytest
import torch

from dartree_core.errors import ConfigError
from dartree_core.models.device import pick_device, pick_dtype


def test_a_device_that_is_here() -> None:
    assert pick_device("cpu") == torch.device("cpu")
    assert pick_device().type in ("cpu", "cuda", "mps")


@pytest.mark.parametrize("name", ["gpu", "xpu", "vulkan", "meta", "cuda:", ""])
def test_kinds_that_nothing_decodes_on(name: str) -> None:
    with pytest.raises(ConfigError, match="no kind of device called") as error:
        pick_device(name)
    assert "cuda:1" in error.value.remedy


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_missing() -> None:
    with pytest.raises(ConfigError, match="no CUDA device"):
        pick_device("cuda:0")


def test_dtypes() -> None:
    assert pick_dtype("bf16", torch.device("cpu")) == torch.bfloat16
    with pytest.raises(ConfigError, match="no dtype 'int4'"):
        pick_dtype("int4", torch.device("cpu"))

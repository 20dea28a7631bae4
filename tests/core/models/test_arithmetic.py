from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from dartree_core.models.arithmetic import Arithmetic, rms_norm


def rows(count: int, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(width)
    return torch.randn(count, width, generator=generator) * torch.arange(count)[:, None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 7, 64, 576, 4096])
def test_the_norm_is_pytorchs(width: int, dtype: torch.dtype) -> None:
    x = rows(5, width).to(dtype)  # the first row is all zeros
    weight = torch.linspace(-2, 3, width).to(dtype)
    found = rms_norm(x, weight, 1e-5)
    assert found.dtype == dtype
    torch.testing.assert_close(found, F.rms_norm(x, (width,), weight, 1e-5))


@pytest.mark.parametrize("width", [32, 576, 1000, 4096])
def test_a_row_is_normed_as_it_would_be_alone(width: int) -> None:
    """Verifying many rows at once must not round otherwise than decoding one by one."""
    x, weight = rows(65, width), torch.linspace(-2, 3, width)
    alone = torch.cat([rms_norm(x[i : i + 1], weight, 1e-5) for i in range(len(x))])
    for count in (2, 3, 9, 17, 65):
        assert torch.equal(rms_norm(x[:count], weight, 1e-5), alone[:count])


def test_norms_leave_their_input_alone() -> None:
    x, delta = rows(3, 16), torch.ones(3, 16)
    kept = x.clone()
    total, normed = Arithmetic().add_norm(x, delta, torch.ones(16), 1e-6)
    assert torch.equal(x, kept)
    assert torch.equal(total, kept + 1)
    torch.testing.assert_close(normed, F.rms_norm(kept + 1, (16,), None, 1e-6))

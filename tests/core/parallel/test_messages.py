"""What rank 0 sends arrives as it was."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from dartree_core.parallel.messages import pack_mask, unpack_mask


@given(st.integers(1, 20), st.integers(0, 2**31))
def test_masks(rows: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, rows, generator=generator) < 0.5
    bits = pack_mask(mask)
    assert bits is not None
    assert len(bits) == -(-rows * rows // 8)
    found = unpack_mask(bits, rows)
    assert found is not None
    assert found.equal(mask)


def test_no_mask() -> None:
    assert unpack_mask(pack_mask(None), 3) is None

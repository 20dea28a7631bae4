from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from dartree_core.engine.pending import Pending

STEPS = st.lists(st.tuples(st.booleans(), st.integers(-1, 6)), max_size=20)


@given(STEPS, st.booleans())
def test_it_is_one_tensor_in_parts(steps: list[tuple[bool, int]], look: bool) -> None:
    pending, whole, count = Pending(), torch.empty(0, 2), 0
    for adds, size in steps:
        if adds:
            more = torch.arange(count, count + max(0, size)).repeat(2, 1).T.float()
            count += len(more)
            pending.append(more)
            whole = torch.cat((whole, more))
        else:
            pending.crop(size)
            whole = whole[: max(0, size)]
        if look:
            assert pending.joined is None or len(pending.joined) == len(pending)
        assert len(pending) == len(whole)
    joined = pending.joined
    assert (joined is None) == (len(whole) == 0)
    assert joined is None or torch.equal(joined, whole)


def test_nothing_is_left_after_clearing() -> None:
    pending = Pending()
    pending.append(torch.ones(3, 2))
    pending.clear()
    assert len(pending) == 0
    assert pending.joined is None

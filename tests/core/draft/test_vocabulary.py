"""Which target tokens a drafter can propose."""

from __future__ import annotations

import pytest
import torch

from dartree_core.draft.vocabulary import DraftVocabulary
from dartree_core.errors import CheckpointError


@pytest.mark.parametrize(("draft", "target"), [(10, 10), (10, 16), (16, 10)])
def test_whole_vocabulary_is_cut_to_what_both_sides_have(draft: int, target: int) -> None:
    vocabulary = DraftVocabulary.from_checkpoint(None, draft, target)
    table = torch.arange(2 * target).view(target, 2)
    assert vocabulary.size == 10
    assert not vocabulary.reduced
    assert torch.equal(vocabulary.select(table), table[:10])
    rows = torch.tensor([[3, 9], [0, 1]])
    assert torch.equal(vocabulary.to_target(rows), rows)


def test_reduced_vocabulary_maps_rows_and_selects_tables() -> None:
    ids = torch.tensor([1, 4, 7], dtype=torch.int32)
    vocabulary = DraftVocabulary.from_checkpoint(ids, 3, 10)
    assert vocabulary.reduced
    assert vocabulary.to_target(torch.tensor([[2, 0]])).tolist() == [[7, 1]]
    assert vocabulary.to_target(torch.tensor([2])).dtype == torch.int64
    assert vocabulary.select(torch.arange(10)).tolist() == [1, 4, 7]


@pytest.mark.parametrize(
    ("ids", "size", "message"),
    [
        ([1, 4, 7], 4, r"\(3,\) entries for 4 rows"),
        ([1, 4, 4], 3, "repeats an id"),
        ([1, -4, 7], 3, "negative"),
        ([1, 4, 10], 3, "reaches 10, but the target has 10"),
    ],
)
def test_impossible_maps_are_refused(ids: list[int], size: int, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        DraftVocabulary.from_checkpoint(torch.tensor(ids), size, 10)

"""Is an output what plain decoding gave in the same run, and if not, how close was it?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from dartree_core.bench.records import TurnRecord
from dartree_core.config import DecodeConfig

if TYPE_CHECKING:
    from dartree_core.engine.prompt import Prompt
    from dartree_core.models.target import Target


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two conversations differ.

    Attributes:
        turn: The turn.
        index: Offset in its answer.
        token, expected: What stands there, and in the plain answer; None past an end.
        margin: By how many logits the target, decoding plainly behind the same tokens, prefers
            its choice to `token`; 0 when this time it chose `token`; None past an end.
        real: True when rounding cannot explain the margin; None without a margin.
    """

    turn: int
    index: int
    token: int | None
    expected: int | None
    margin: float | None = None
    real: bool | None = None


def first_difference(
    turns: Sequence[TurnRecord], plain: Sequence[TurnRecord]
) -> tuple[int, int] | None:
    """Turn and offset of the first difference in token ids, or None."""
    for number, (ours, theirs) in enumerate(zip(turns, plain, strict=True)):
        if ours.token_ids != theirs.token_ids:
            pairs = zip(ours.token_ids, theirs.token_ids, strict=False)
            same = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
            shorter = min(len(ours.token_ids), len(theirs.token_ids))
            return number, shorter if same is None else same
    return None


def compare(
    target: Target,
    prompts: Sequence[Prompt],
    turns: Sequence[TurnRecord],
    plain: Sequence[TurnRecord],
    config: DecodeConfig,
) -> dict[str, Any] | None:
    """None for equal conversations, else a `Difference` as a dictionary.

    The place is scored again with plain decoding, token by token up to it, so the margin is that
    of the run's own arithmetic.

    Args:
        target: The model.
        prompts: Of the conversation that is checked, one per turn.
        turns, plain: Its answers, and those of plain decoding.
        config: For its sampling settings.
    """
    place = first_difference(turns, plain)
    if place is None:
        return None
    turn, index = place
    token = _at(turns[turn].token_ids, index)
    expected = _at(plain[turn].token_ids, index)
    margin, real = None, None
    # Where one just ends before the other there is no second token to weigh.
    if token is not None and expected is not None:
        import torch

        from dartree_core.engine.rescore import rescore

        output = turns[turn].token_ids[: index + 1]
        with torch.inference_mode():
            found = rescore(target, prompts[turn].ids, output, config)
        here = next((d for d in found if d.index == index), None)
        margin, real = (here.margin, here.real) if here else (0.0, False)
    return asdict(Difference(turn, index, token, expected, margin, real))


def _at(ids: Sequence[int], index: int) -> int | None:
    return ids[index] if index < len(ids) else None

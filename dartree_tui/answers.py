"""Answers that more than one turn wrote, each going on with the one before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dartree_core.events import TurnStarted

if TYPE_CHECKING:
    from dartree_tui.store import Turn


def parts(turns: Sequence[Turn], turn: Turn) -> list[Turn]:
    """All turns of the answer that `turn` belongs to, in order."""
    while turn.continues is not None:
        turn = turns[turn.continues]
    found = [turn]
    for later in turns[turn.index + 1 :]:
        if later.continues == found[-1].index:
            found.append(later)
    return found


def whole(turns: Sequence[Turn], turn: Turn) -> str:
    """The text of the answer that `turn` belongs to."""
    return "".join(part.text for part in parts(turns, turn))


def goes_on(event: TurnStarted, prompt_ids: Sequence[int], emitted: Sequence[int]) -> bool:
    """Whether a turn's input is that of the turn before and, after it, what that turn wrote.

    Args:
        event: What started the turn.
        prompt_ids: Input of the turn before.
        emitted: Tokens of the turn before; the last of them may be missing in the input.
    """
    if event.template != "ids" or not prompt_ids:
        return False
    ids, asked = list(event.prompt_ids), len(prompt_ids)
    said = ids[asked:]
    return ids[:asked] == list(prompt_ids) and bool(said) and said == list(emitted[: len(said)])

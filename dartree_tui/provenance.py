"""Which part of an answer came from where: from the draft tree, the target alone, or prefill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dartree_core.events import Provenance


@dataclass(frozen=True, slots=True)
class Piece:
    """Characters `start` to `end` of an answer.

    Attributes:
        source: Where the tokens behind them came from.
        round: Index of the round within the turn; -1 for prefill.
    """

    start: int
    end: int
    source: Provenance
    round: int


def split_delta(
    delta: str, span: tuple[int, int], texts: Sequence[str], sources: Sequence[Provenance]
) -> list[tuple[int, int, Provenance]]:
    """Divide a round's text among its tokens.

    Detokenisation may hold characters back and release them a round later, so token texts and
    the delta need not line up. The tail decides: the last token's text ends the delta whenever
    nothing was held back, and what no token claims belongs to the first one.

    Args:
        delta: The round's text; `span` is where it lies in the answer.
        texts, sources: Text and provenance of each emitted token.

    Returns:
        (start, end, source) runs that cover the span in order; neighbours differ in source.
    """
    cuts: list[tuple[int, int, Provenance]] = []
    end = len(delta)
    for i in range(len(texts) - 1, -1, -1):
        if end == 0:
            break
        text = texts[i]
        if not text:
            continue
        fits = delta.endswith(text, 0, end)
        start = end - len(text) if fits and i > 0 else 0 if i == 0 else end
        if start < end:
            cuts.append((span[0] + start, span[0] + end, sources[i]))
            end = start
    if end > 0:
        cuts.append((span[0], span[0] + end, sources[0] if sources else "bonus"))
    runs: list[tuple[int, int, Provenance]] = []
    for start, stop, source in reversed(cuts):
        if runs and runs[-1][2] == source:
            runs[-1] = (runs[-1][0], stop, source)
        else:
            runs.append((start, stop, source))
    return runs

"""Lines between cells: which box-drawing character joins a parent's row to its children's.

Between two columns runs one gap, one cell wide. A link enters it from the left in the parent's
row, runs up or down, and leaves to the right in the child's row. Links that share a cell merge.
"""

from __future__ import annotations

from collections.abc import Iterable

LEFT, RIGHT, UP, DOWN = 1, 2, 4, 8

_LIGHT = dict(zip(range(1, 16), "╴╶─╵╯╰┴╷╮╭┬│┤├┼", strict=True))
_HEAVY = dict(zip(range(1, 16), "╸╺━╹┛┗┻╻┓┏┳┃┫┣╋", strict=True))


def route(links: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Directions that meet in each row of a gap.

    Args:
        links: (parent's row, child's row) pairs.

    Returns:
        Row to a sum of `LEFT`, `RIGHT`, `UP` and `DOWN`; rows without a line are absent.
    """
    cells: dict[int, int] = {}

    def add(row: int, directions: int) -> None:
        cells[row] = cells.get(row, 0) | directions

    for start, end in links:
        add(start, LEFT)
        add(end, RIGHT)
        if start == end:
            continue
        away, back = (DOWN, UP) if end > start else (UP, DOWN)
        add(start, away)
        add(end, back)
        for row in range(min(start, end) + 1, max(start, end)):
            add(row, UP | DOWN)
    return cells


def character(directions: int, heavy: bool) -> str:
    """The box-drawing character for a sum of directions; a blank for none."""
    return (_HEAVY if heavy else _LIGHT).get(directions, " ")

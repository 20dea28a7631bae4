"""Sizes that static shapes are rounded up to: few enough to record a graph for each in use."""

from __future__ import annotations

MOST_ROWS = 128
"""Longest pass that is padded; longer ones are bound by arithmetic, not by launches."""
_SHORTEST = 256
_SMALLEST_ARENA = 2048
"""Positions a new arena has room for, so that most conversations never outgrow theirs."""


def row_bucket(rows: int) -> int:
    """Rows that a pass over `rows` is padded to: 1, 2, 4, 8, then multiples of 16.

    Up to a few hundred rows a pass costs what its weights take to read, so a bucket need not be
    tight; 65 rows, a tree of 64 nodes with its root, become 80 and not 128.
    """
    if rows <= 8:
        return 1 << max(0, rows - 1).bit_length()
    return -(-rows // 16) * 16


def length_bucket(length: int) -> int:
    """Cached positions that attention is laid out for: 256, 512, 768, 1024, 1536, 2048, ...

    Two sizes per doubling: a conversation crosses few of them, and at most a third of the
    attended positions is padding.
    """
    size = _SHORTEST
    while size < length:
        if size >= 2 * _SHORTEST and size + size // 2 >= length:
            return size + size // 2
        size *= 2
    return size


def arena_length(needed: int) -> int:
    """Positions that a new arena holds when a conversation needs so many now."""
    return length_bucket(max(2 * needed, _SMALLEST_ARENA))

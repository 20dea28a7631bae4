"""From a place in rendered Markdown back to the place in its source."""

from __future__ import annotations

import re


def place_in_source(text: str, lines: tuple[int, int], before: str, after: str) -> int | None:
    """The source offset of a place in a rendered block.

    Rendering drops marks and joins lines, so offsets do not carry over; words do. The word at
    the place is looked up in the block's source, as often as it was rendered before.

    Args:
        text: The whole source.
        lines: The block's first line and the line past its last.
        before, after: The block's rendered text up to the place and from it on.

    Returns:
        The offset, or the block's start when the word is not in its source; None when the block
        lies outside the source or has no word there.
    """
    source = text.splitlines(keepends=True)
    start = sum(map(len, source[: lines[0]]))
    end = start + sum(map(len, source[lines[0] : lines[1]]))
    head = re.findall(r"\S*$", before)[0]
    tail = re.match(r"\S*", after)
    word = head + (tail[0] if tail else "")
    if not word or start >= len(text):
        return None
    at = start
    for _ in range(before[: len(before) - len(head)].count(word) + 1):
        found = text.find(word, at, end)
        if found < 0:
            return start
        at = found + len(word)
    return at - len(word) + len(head)

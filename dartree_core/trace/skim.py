"""Rounds of which nobody looks at the tree now: it is neither checked nor made ready to be shown.

That takes most of the time that reading a round does. Who wants to see it reads its line again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dartree_core.tree import DraftTree

_KINDS = {"token": int, "depth": int, "kept": bool}
"""Columns that figures are made of, and what they hold."""
_OTHERS = ("parent", "slot", "draft_logp", "head_logp", "path_logp", "select", "state")


class Skimmed(DraftTree):
    """A tree of which `token`, `depth` and `kept` can be used, and what follows from them.

    The other columns are as they were written, unchecked and with None for what is not finite, or
    missing.
    """

    __slots__ = ()


def skim(tree: Any) -> Skimmed | None:
    """The tree of a record, or None where it had better be read with care."""
    if not isinstance(tree, Mapping):
        return None
    columns = {name: tree.get(name, ()) for name in (*_KINDS, *_OTHERS)}
    size = len(columns["token"]) if isinstance(columns["token"], list) else 0
    for name, kind in _KINDS.items():
        column = columns[name]
        if type(column) is not list or len(column) != size or set(map(type, column)) != {kind}:
            return None
    return Skimmed(**columns)

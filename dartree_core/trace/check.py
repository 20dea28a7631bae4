"""Checks on what was read, so that no viewer meets a shape it cannot draw."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, TypeAlias

from dartree_core.events import Event, RoundDone
from dartree_core.trace.skim import Skimmed
from dartree_core.tree import DraftTree

Test: TypeAlias = Callable[[Any], bool]

_NUMBER = frozenset((int, float))


def problem(event: Event) -> str | None:
    """What is wrong with a decoded event, in a few words, or None."""
    wrong = _wrong_field(event)
    if wrong is None and isinstance(event, RoundDone) and not isinstance(event.tree, Skimmed):
        wrong = _wrong_field(event.tree) or next(event.tree.problems(), None)
        wrong = wrong or _wrong_round(event)
    return wrong


def _wrong_round(event: RoundDone) -> str | None:
    if len(event.provenance) != len(event.tokens):
        return f"{len(event.tokens)} tokens but {len(event.provenance)} provenances"
    path = tuple(event.accepted)
    n = len(event.tree)
    if not path or path[0] != 0 or not all(0 <= i < n for i in path):
        return "accepted is not a path from the root"
    if any(event.tree.parent[child] != node for node, child in pairwise(path)):
        return "accepted is not a path from the root"
    if not all(event.tree.kept[i] for i in path):
        return "an accepted node was never verified"
    drafted = [
        t for t, source in zip(event.tokens, event.provenance, strict=True) if source == "draft"
    ]
    if drafted != [event.tree.token[i] for i in path[1 : len(drafted) + 1]]:
        return "the emitted draft tokens are not those of the accepted path"
    return None


def _wrong_field(value: Any) -> str | None:
    for name, test in _tests(type(value)):
        if not test(getattr(value, name)):
            return f"{name} has an unusable value"
    return None


_made: dict[type[Any], tuple[tuple[str, Test], ...]] = {}


def _tests(cls: type[Any]) -> tuple[tuple[str, Test], ...]:
    """One test for each field of a dataclass, made once from its type hints."""
    tests = _made.get(cls)
    if tests is None:
        hints = typing.get_type_hints(cls)
        tests = _made[cls] = tuple((name, _test(hint)) for name, hint in hints.items())
    return tests


def _test(hint: Any) -> Test:
    origin = typing.get_origin(hint)
    args = typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        tests = [_test(a) for a in args]
        return lambda v: any(t(v) for t in tests)
    if origin is Literal:
        known = frozenset(args)
        return lambda v: isinstance(v, str) and v in known
    if origin is Mapping:
        key = _is_name if typing.get_origin(args[0]) is Literal else _test(args[0])
        value = _test(args[1])
        return lambda v: isinstance(v, Mapping) and all(map(key, v)) and all(map(value, v.values()))
    if origin is tuple:
        return lambda v: isinstance(v, tuple) and list(map(type, v)) == list(args)
    if origin is Sequence:
        return _sequence_test(args[0])
    if hint is float:
        return lambda v: type(v) in _NUMBER
    if hint is Any:
        return lambda _: True
    if hint is DraftTree:
        return lambda v: isinstance(v, DraftTree)
    return lambda v: type(v) is hint


def _is_name(key: Any) -> bool:
    """Whether it can name one of a closed set, to which a newer version may have added."""
    return isinstance(key, str) and key.isascii() and key.isidentifier()


def _sequence_test(item: Any) -> Test:
    if item in (int, float, bool, str):  # the columns of a tree: one pass in C
        allowed = _NUMBER if item is float else frozenset((item,))
        return lambda v: isinstance(v, tuple) and allowed.issuperset(map(type, v))
    if typing.get_origin(item) is Literal:
        known = frozenset(typing.get_args(item))
        return lambda v: isinstance(v, tuple) and set(map(type, v)) <= {str} and known >= set(v)
    each = _test(item)
    return lambda v: isinstance(v, tuple) and all(map(each, v))

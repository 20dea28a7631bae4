"""What a worker is asked and how it answers: one JSON object a line, both ways.

Requests carry an `op` and an optional `id`. Every request is answered by exactly one `Reply`:
when the work is over by `load`, `generate` and `calibrate`, and at once by all others. Between
replies the worker writes the event stream, in the format of a trace file. Nothing here imports
torch.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, TypeAlias

from dartree_core.config import TreeConfig
from dartree_core.errors import DARTreeError

RequestId: TypeAlias = int | str | None
StepBy = Literal["stage", "round"]

TREE_SETTINGS = frozenset(f.name for f in fields(TreeConfig))
"""Settings that reach a running turn; all others wait for the next one."""


class RequestError(DARTreeError):
    """A request the worker could not read, or cannot serve now."""

    exit_code = 2

    def __init__(self, message: str, remedy: str = "", id: RequestId = None, op: str = "") -> None:
        super().__init__(message, remedy)
        self.id = id
        self.op = op


@dataclass(frozen=True, slots=True)
class Load:
    """Load a bundle, or a hand-picked target and drafter, in place of what is loaded now."""

    id: RequestId = None
    bundle: str = "demo"
    target: str | None = None
    draft: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    trust_remote_code: bool = False


@dataclass(frozen=True, slots=True)
class Generate:
    """Decode one turn.

    Attributes:
        prompt: Text, chat messages (`{"role", "content"}`), or token ids.
        config: `DecodeConfig.to_dict()`, or None for the worker's own, see `Set`.
        raw: Feed text as it is, without the chat template.
        thinking: For templates that can think: ask for it, forbid it, or None for the default.
        fresh: Decode in a session of its own and leave the conversation's cache alone.
        glance_seconds: Where the configuration wants stages told: least seconds between two rounds
            whose stages are, while nothing holds the decoder. They take 1% of its time at most.
    """

    prompt: str | list[Any]
    id: RequestId = None
    config: dict[str, Any] | None = None
    raw: bool = False
    thinking: bool | None = None
    fresh: bool = False
    glance_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Pause:
    """Hold the decoder after the event it is working on."""

    id: RequestId = None


@dataclass(frozen=True, slots=True)
class Resume:
    """Let a held decoder run."""

    id: RequestId = None


@dataclass(frozen=True, slots=True)
class Step:
    """Let a held decoder work until its next event (`stage`) or its next round."""

    id: RequestId = None
    by: StepBy = "stage"


@dataclass(frozen=True, slots=True)
class Cancel:
    """End the running turn after the work at hand; the turn finishes as `cancelled`."""

    id: RequestId = None


@dataclass(frozen=True, slots=True)
class Set:
    """Change settings by flat name (`{"budget": 8}`).

    Tree settings reach a running turn from its next round; all others count from the next turn.
    """

    changes: dict[str, Any]
    id: RequestId = None


@dataclass(frozen=True, slots=True)
class Calibrate:
    """Measure plain decoding on the loaded target, in a session of its own."""

    id: RequestId = None
    tokens: int = 24


@dataclass(frozen=True, slots=True)
class Reset:
    """Forget the conversation: the next turn starts with empty caches."""

    id: RequestId = None


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Cancel what runs and end the process. Closing the worker's stdin does the same."""

    id: RequestId = None


Request: TypeAlias = (
    Load | Generate | Pause | Resume | Step | Cancel | Set | Calibrate | Reset | Shutdown
)

OPS: dict[str, type[Any]] = {cls.__name__.lower(): cls for cls in typing.get_args(Request)}
"""Operation name to its request class."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one request; `ok` False carries what went wrong and what to do."""

    id: RequestId
    op: str
    ok: bool = True
    message: str = ""
    remedy: str = ""
    result: Mapping[str, Any] = field(default_factory=dict)


def encode_request(request: Request) -> str:
    """The request as one line of JSON, without the line break."""
    body = {"op": type(request).__name__.lower(), **asdict(request)}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"))


def encode_reply(reply: Reply) -> dict[str, Any]:
    """The reply as a JSON-ready record of kind `Reply`."""
    return {"kind": "Reply", **asdict(reply)}


def decode_reply(record: Mapping[str, Any]) -> Reply:
    """Inverse of `encode_reply`; unknown keys are ignored.

    Raises:
        RequestError: the record lacks an id or an operation.
    """
    known = {f.name for f in fields(Reply)}
    try:
        return Reply(**{k: v for k, v in record.items() if k in known})
    except TypeError as error:
        raise RequestError(f"A reply of the worker is incomplete: {error}.") from error


def decode_request(line: str | bytes) -> Request:
    """Read one request.

    Raises:
        RequestError: the line is not JSON, not an object, names no known operation, or a field
            is missing, unknown or of the wrong type.
    """
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RequestError(
            f"A request is not valid JSON: {error}.",
            'Send one object a line, such as {"op": "load", "bundle": "demo"}.',
        ) from error
    if not isinstance(data, dict):
        raise RequestError(
            f"A request is a {type(data).__name__}, not an object.",
            'Send one object a line, such as {"op": "cancel"}.',
        )
    id = data.get("id")
    if not isinstance(id, int | str | None) or isinstance(id, bool):
        raise RequestError("A request's id must be a whole number, a string or null.")
    op = data.get("op")
    cls = OPS.get(op) if isinstance(op, str) else None
    if cls is None:
        raise RequestError(f"There is no operation {op!r}.", f"Known: {', '.join(OPS)}.", id)
    given = {k: v for k, v in data.items() if k != "op"}
    _check_fields(cls, given, id, str(op))
    request: Request = cls(**given)
    return request


def _check_fields(cls: type[Any], given: Mapping[str, Any], id: RequestId, op: str) -> None:
    hints = typing.get_type_hints(cls)
    unknown = sorted(set(given) - set(hints))
    if unknown:
        raise RequestError(
            f"{op} has no field {', '.join(unknown)}.", f"Fields: {', '.join(hints)}.", id, op
        )
    for name, value in given.items():
        if not _matches(value, hints[name]):
            raise RequestError(
                f"{op}: {name} is {_brief(value)}, which is not {_describe(hints[name])}.",
                id=id,
                op=op,
            )
    if cls is Generate:
        if "prompt" not in given:
            raise RequestError("generate needs a prompt.", "Add text or messages.", id, op)
        _check_prompt(given["prompt"], id)
    if cls is Set and "changes" not in given:
        raise RequestError("set needs changes.", 'For example {"budget": 8}.', id, op)
    if cls is Calibrate and not 4 <= given.get("tokens", 24) <= 4096:
        raise RequestError("calibrate: tokens must lie between 4 and 4096.", id=id, op=op)


def _check_prompt(prompt: str | list[Any], id: RequestId) -> None:
    if isinstance(prompt, str) and prompt:
        return
    if isinstance(prompt, list) and prompt:
        if all(isinstance(p, int) and not isinstance(p, bool) and p >= 0 for p in prompt):
            return
        if all(
            isinstance(p, dict)
            and isinstance(p.get("role"), str)
            and isinstance(p.get("content"), str)
            for p in prompt
        ):
            return
    raise RequestError(
        "generate: the prompt is empty or neither text, messages nor token ids.",
        'Send text, or messages such as [{"role": "user", "content": "Hello"}].',
        id,
        "generate",
    )


def _matches(value: Any, hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_matches(value, h) for h in typing.get_args(hint))
    if origin is Literal:
        return value in typing.get_args(hint)
    if hint in (None, type(None)):
        return value is None
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, origin or hint)


def _describe(hint: Any) -> str:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_describe(h) for h in typing.get_args(hint))
    if origin is Literal:
        return "one of " + ", ".join(map(repr, typing.get_args(hint)))
    names = {
        str: "text",
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        type(None): "null",
        list: "a list",
        dict: "an object",
    }
    return names.get(origin or hint, str(hint))


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

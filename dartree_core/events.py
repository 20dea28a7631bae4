"""The event stream: what the decoder says, and all that any reader ever sees.

Headless output, the terminal app, a recorded trace and its replay read the same stream. Every
event is frozen data that survives a trip through one line of JSON (`encode`, `decode`).
"""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeAlias

from dartree_core.errors import TraceError
from dartree_core.tree import BonusFate, DraftTree, rounded

SCHEMA_VERSION = "1.0"
"""`major.minor`: a reader refuses another major and ignores keys and kinds it does not know."""

Provenance = Literal["prefill", "draft", "bonus"]
FinishReason = Literal["eos", "stop_string", "length", "cancelled", "error"]
Stage = Literal["draft", "tree_build", "tree_setup", "verify", "commit"]
STAGES: tuple[Stage, ...] = typing.get_args(Stage)


@dataclass(frozen=True, slots=True)
class RunStarted:
    """Once, first. What decodes what, with which settings: enough to run it again.

    Attributes:
        schema: Schema version of the stream.
        created: UTC time, ISO 8601.
        bundle: Name of the bundle, or "" for a hand-picked trio.
        target, drafter: Name or path, revision, and shape facts of the models.
        device, dtype: Where and in which precision the target runs.
        versions: Package name to version.
        config: `DecodeConfig.to_dict()` of the first turn.
        prompt, prompt_ids, template: As in the first `TurnStarted`, for readers of one-turn runs.
        notes: What the user should know about models and prompt, one sentence each.
    """

    schema: str = SCHEMA_VERSION
    created: str = ""
    bundle: str = ""
    target: Mapping[str, Any] = field(default_factory=dict)
    drafter: Mapping[str, Any] = field(default_factory=dict)
    device: str = ""
    dtype: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    prompt: str = ""
    prompt_ids: Sequence[int] = ()
    template: str = ""
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """While models load. `done` of `total` in `unit` ("bytes", "tensors"); total 0 is unknown."""

    what: str
    done: int
    total: int
    unit: str = "bytes"


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """Once per turn, before prefill.

    Attributes:
        turn: 0-based.
        prompt: What the user asked in this turn.
        prompt_ids: The whole input, earlier turns included.
        template: `raw`, `chat`, `chat:thinking` or `chat:no-thinking`.
        config: `DecodeConfig.to_dict()`.
    """

    turn: int
    prompt: str
    prompt_ids: Sequence[int]
    template: str
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PrefillDone:
    """The prompt is in the cache and the first token is known.

    Attributes:
        prompt_tokens, reused_tokens: Length of the input; how much of it was in the cache.
        seconds: Time of the prefill, the drafter's included if the first round drafts.
        ttft: Seconds from the request to the first token.
        first_token: The root of round 0.
        text_delta: Text that became final; `span` are its character offsets in the answer.
    """

    turn: int
    prompt_tokens: int
    reused_tokens: int
    seconds: float
    ttft: float
    first_token: int
    text_delta: str
    span: tuple[int, int]


@dataclass(frozen=True, slots=True)
class BlockDrafted:
    """Stage event: the drafter's marginals, per slot the likeliest tokens and their log-probs."""

    turn: int
    round: int
    token: Sequence[Sequence[int]]
    draft_logp: Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class DepthExpanded:
    """Stage event: one depth of the supertree was scored and selected.

    Node ids are those of the round's tree; `parent` refers to them. `considered` counts the
    (parent, child) pairs that competed.
    """

    turn: int
    round: int
    depth: int
    considered: int
    node: Sequence[int]
    token: Sequence[int]
    parent: Sequence[int]
    draft_logp: Sequence[float]
    head_logp: Sequence[float]
    path_logp: Sequence[float]


@dataclass(frozen=True, slots=True)
class TreePruned:
    """Stage event: best-first selection kept these node ids (root included)."""

    turn: int
    round: int
    kept: Sequence[int]


@dataclass(frozen=True, slots=True)
class TreeVerified:
    """Stage event: the target scored every kept node.

    `node` lists kept node ids; `choice` is the target's own token after each;
    `target_logp` the log-probability of the node itself given its path (0 for the root).
    """

    turn: int
    round: int
    node: Sequence[int]
    choice: Sequence[int]
    target_logp: Sequence[float]


@dataclass(frozen=True, slots=True)
class RoundDone:
    """Once per round: the tree, what was accepted, what was emitted, what it cost.

    Attributes:
        turn, round: 0-based; rounds count from 0 in every turn.
        position: Absolute position of the root in the sequence.
        tree: The supertree with every node's fate.
        accepted: Node ids of the accepted path, starting with the root (0).
        tokens: Emitted tokens: the accepted draft tokens, then the bonus token, cut where the
            turn ends.
        provenance: One per emitted token, `draft` or `bonus`.
        bonus: The target's own token after the accepted path, or None when the turn ended
            before it.
        bonus_fate: Why the tree lacked the bonus token; None without one.
        text_delta, span: Text that became final, and its character offsets in the answer.
        ms: Milliseconds per stage.
        kv_length: Committed positions in the target's cache after the round.
        budget: Most draft nodes this round was allowed to verify.
        expected: Tokens the budget policy expected of this round, or None without a policy.
        note: Why this round did not speculate, or "".
    """

    turn: int
    round: int
    position: int
    tree: DraftTree
    accepted: Sequence[int]
    tokens: Sequence[int]
    provenance: Sequence[Provenance]
    bonus: int | None
    bonus_fate: BonusFate | None
    text_delta: str
    span: tuple[int, int]
    ms: Mapping[Stage, float]
    kv_length: int
    budget: int
    expected: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class TurnFinished:
    """Once per turn.

    Attributes:
        reason: `eos`, `stop_string`, `length`, `cancelled` or `error`.
        text, token_ids: The whole answer. Text excludes the stop string and special tokens;
            ids include a final EOS and the tokens that completed a stop string.
        text_delta, span: Text held back until now (only after a cancel), so that joined deltas
            always equal `text`.
        metrics: See `dartree_core.metrics`.
    """

    turn: int
    reason: FinishReason
    text: str
    token_ids: Sequence[int]
    text_delta: str = ""
    span: tuple[int, int] = (0, 0)
    metrics: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Plain decoding was measured on the loaded target: the baseline of every speedup shown.

    Attributes:
        method: `ar`.
        tokens_per_second: Over `tokens` tokens and `seconds` seconds, prefill and warm-up left out.
    """

    method: str
    tokens_per_second: float
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RunFailed:
    """Something went wrong; `message` and `remedy` are for the user, `error` names its class."""

    message: str
    remedy: str = ""
    error: str = ""


Event: TypeAlias = (
    RunStarted
    | LoadProgress
    | TurnStarted
    | PrefillDone
    | BlockDrafted
    | DepthExpanded
    | TreePruned
    | TreeVerified
    | RoundDone
    | TurnFinished
    | Calibrated
    | RunFailed
)

KINDS: dict[str, type[Any]] = {cls.__name__: cls for cls in typing.get_args(Event)}
"""Event name, as written in the `kind` key, to its class."""


def encode(event: Event) -> dict[str, Any]:
    """The event as a JSON-ready dictionary with a `kind` key.

    Floats are rounded to 4 decimals; infinities and NaN become None.
    """
    out: dict[str, Any] = {"kind": type(event).__name__}
    for f in fields(event):
        out[f.name] = _plain(getattr(event, f.name))
    return out


def decode(data: Mapping[str, Any]) -> Event | None:
    """Inverse of `encode`: None for a kind this version does not know; unknown keys are ignored.

    Raises:
        TraceError: a known kind lacks a field it needs.
    """
    cls = KINDS.get(str(data.get("kind")))
    if cls is None:
        return None
    values: dict[str, Any] = {}
    for f in fields(cls):
        if f.name not in data:
            continue
        value = data[f.name]
        if f.name == "tree":
            value = value if isinstance(value, DraftTree) else DraftTree.from_dict(value)
        elif isinstance(value, list):
            value = _frozen(value, nan="logp" in f.name)
        values[f.name] = value
    try:
        event: Event = cls(**values)
    except TypeError as error:
        raise TraceError(
            f"A {cls.__name__} record is incomplete: {error}.",
            "The file was edited or written by another program; record it again.",
        ) from error
    return event


_AS_THEY_ARE = frozenset((int, str, bool, type(None)))


def _plain(value: Any) -> Any:
    match value:
        case DraftTree():
            return value.to_dict()
        case float():
            return round(value, 4) if math.isfinite(value) else None
        case str() | int() | None:
            return value
        case Mapping():
            return {str(k): _plain(v) for k, v in value.items()}
        case _:
            return _plain_list(value)


def _plain_list(values: Sequence[Any]) -> list[Any]:
    kinds = set(map(type, values))
    if kinds <= _AS_THEY_ARE:  # a column of ids: no look at each of them
        return list(values)
    if kinds == {float}:
        return rounded(values)
    return [_plain(v) for v in values]


def _frozen(value: list[Any], nan: bool) -> tuple[Any, ...]:
    kinds = set(map(type, value))
    if list not in kinds and not (nan and type(None) in kinds):
        return tuple(value)
    return tuple(
        _frozen(v, nan) if isinstance(v, list) else math.nan if nan and v is None else v
        for v in value
    )

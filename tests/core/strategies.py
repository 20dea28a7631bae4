"""Hypothesis strategies for what a decoder may say: trees, rounds, and whole runs.

Structure (sizes, paths, ends) is drawn, so that failures shrink; scores and tokens come from a
seeded generator, so that examples are cheap. Everything drawn is what a sound decoder could have
produced: trees grown level by level and pruned to the budget, text in deltas, ends of all kinds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from dartree_core.config import DecodeConfig, TreeConfig
from dartree_core.events import (
    STAGES,
    BlockDrafted,
    DepthExpanded,
    Event,
    FinishReason,
    PrefillDone,
    Provenance,
    RoundDone,
    RunStarted,
    TreePruned,
    TreeVerified,
    TurnFinished,
    TurnStarted,
)
from dartree_core.metrics import RunningMetrics
from dartree_core.pieces import TokenText
from dartree_core.text import AnswerText
from dartree_core.tree import BonusFate, DraftTree, State

EOS = 0
PIECES: tuple[bytes, ...] = (
    b"",  # EOS says nothing
    *map(str.encode, (" the", " cat", "s", ".", "\n", "  ", " 日本", "é", "\u0301", "'", "\t")),
    *map(str.encode, ("<stop>", "<", "stop", ">", " 👩")),
    *(b" \xf0\x9f", b"\x98\x80", b"\xe2", b"\x80", b"\x99", b"\xff"),
)
"""Text of token ids 0, 1, …: words, blanks, a stop string whole and in parts, torn characters."""

VOCAB_SIZE = len(PIECES)


def token_text(token: int) -> TokenText:
    return TokenText("<eos>") if token == EOS else TokenText.of_bytes(PIECES[token])


def decode_text(ids: Sequence[int]) -> str:
    return b"".join(PIECES[i] for i in ids).decode("utf-8", "replace")


def _score(rng: Random) -> float:
    # Repeated values, so that ties occur.
    return rng.choice((-0.25, -1.0, round(-rng.expovariate(0.5), 4)))


@st.composite
def trees(
    draw: st.DrawFn,
    *,
    max_depth: int = 5,
    max_width: int = 4,
    root: int | None = None,
    full: bool | None = None,
) -> DraftTree:
    """A supertree after pruning and verification, with an accepted path; often with ties.

    Args:
        root: The root's token; any by default.
        full: With or without the columns of full detail; either by default.
    """
    rng = Random(draw(st.integers(0, 2**32 - 1)))
    beta = draw(st.sampled_from((0.0, -0.2)))
    token = [rng.randrange(VOCAB_SIZE) if root is None else root]
    parent, depth = [-1], [0]
    draft, head, path = [0.0], [0.0], [0.0]
    level = [0]
    for d in range(1, draw(st.integers(0, max_depth)) + 1):
        fresh = []
        for _ in range(draw(st.integers(1, max_width))):
            p = rng.choice(level)
            taken = {token[i] for i in range(len(token)) if parent[i] == p}
            fresh.append(len(token))
            token.append(rng.choice([t for t in range(VOCAB_SIZE) if t not in taken]))
            parent.append(p)
            depth.append(d)
            draft.append(_score(rng))
            head.append(_score(rng))
            path.append(round(path[p] + head[-1], 4))
        level = fresh
    n = len(token)
    select = [round(s + beta * d, 4) for s, d in zip(path, depth, strict=True)]
    budget = draw(st.integers(1, n))
    best = sorted(range(1, n), key=lambda i: (-select[i], i))[:budget]
    kept = [i == 0 or i in best for i in range(n)]
    hits = [0]
    for _ in range(draw(st.integers(0, max_depth))):
        below = [i for i in range(n) if parent[i] == hits[-1] and kept[i]]
        if not below:
            break
        hits.append(rng.choice(below))
    columns: dict[str, list[float]] = {}
    ranks: dict[str, list[int]] = {}
    if draw(st.booleans()) if full is None else full:
        columns["target_logp"] = [
            0.0 if i == 0 else _score(rng) if k else math.nan for i, k in enumerate(kept)
        ]
        columns["coverage"] = [round(rng.random(), 4) if k else math.nan for k in kept]
        for name in ("draft_rank", "head_rank", "target_rank"):
            ranks[name] = [0 if i == 0 else rng.randint(1, 64) for i in range(n)]
    return DraftTree(
        token=token,
        parent=parent,
        depth=depth,
        slot=[d - 1 for d in depth],
        draft_logp=draft,
        head_logp=head,
        path_logp=path,
        select=select,
        kept=kept,
        state=[_state(i, parent, kept, hits) for i in range(n)],
        target_logp=columns.get("target_logp"),
        draft_rank=ranks.get("draft_rank"),
        head_rank=ranks.get("head_rank"),
        target_rank=ranks.get("target_rank"),
        coverage=columns.get("coverage"),
    )


def _state(i: int, parent: list[int], kept: list[bool], hits: list[int]) -> State:
    if not kept[i]:
        return "pruned"
    if i in hits:
        return "hit"
    return "walked_past" if parent[i] in hits else "unreached"


def accepted_path(tree: DraftTree) -> list[int]:
    """The hits, root first."""
    return [i for i, state in enumerate(tree.state) if state == "hit"]


def _fate(draw: st.DrawFn, tree: DraftTree, last: int, bonus: int) -> BonusFate:
    if any(tree.token[i] == bonus for i in tree.children(last)):
        return "final_pruned"
    if not any(d > tree.depth[last] for d in tree.depth):
        return "not_expanded"
    return draw(st.sampled_from(("not_proposed", "level_pruned")))


@dataclass
class _Answer:
    """Emits tokens until the turn is over; says where and why it ended."""

    text: AnswerText
    limit: int
    reason: FinishReason | None = None
    ids: list[int] = field(default_factory=list)

    def emit(self, tokens: Sequence[int]) -> list[int]:
        out: list[int] = []
        for token in tokens:
            if self.reason is not None:
                break
            out.append(token)
            self.ids.append(token)
            stopped = self.text.push(token)
            if token == EOS:
                self.reason = "eos"
            elif stopped:
                self.reason = "stop_string"
            elif len(self.ids) == self.limit:
                self.reason = "length"
        if self.reason is not None:
            self.text.flush()
        return out


@st.composite
def rounds(draw: st.DrawFn, *, full: bool | None = None) -> RoundDone:
    """One round of its own, not cut by the end of a turn."""
    answer = _Answer(AnswerText(decode_text), limit=10**9)
    return _round(draw, answer, 0, draw(st.integers(0, 9)), 7, draw(_token), full)


_token = st.integers(1, VOCAB_SIZE - 1)
_stop = st.sampled_from(("<stop>", "日", "s", " \n", "the c"))


def _round(
    draw: st.DrawFn,
    answer: _Answer,
    turn: int,
    number: int,
    position: int,
    root: int,
    full: bool | None,
) -> RoundDone:
    tree = draw(trees(root=root, full=full))
    path = accepted_path(tree)
    verified = {tree.token[i] for i in tree.children(path[-1]) if tree.kept[i]}
    pruned = [tree.token[i] for i in tree.children(path[-1]) if not tree.kept[i]]
    others = [t for t in range(VOCAB_SIZE) if t not in verified]
    prefer_pruned = bool(pruned) and draw(st.booleans())
    bonus = draw(st.sampled_from(pruned if prefer_pruned else others))
    accepted = [tree.token[i] for i in path[1:]]
    tokens = answer.emit([*accepted, bonus])
    whole = len(tokens) > len(accepted)
    drafted: list[Provenance] = ["draft"] * len(accepted)
    delta, span = answer.text.delta()
    rng = Random(draw(st.integers(0, 2**32 - 1)))
    return RoundDone(
        turn=turn,
        round=number,
        position=position,
        tree=tree,
        accepted=path,
        tokens=tokens,
        provenance=[*drafted, "bonus"][: len(tokens)],
        bonus=bonus if whole else None,
        bonus_fate=_fate(draw, tree, path[-1], bonus) if whole else None,
        text_delta=delta,
        span=span,
        ms={stage: round(rng.uniform(0, 50), 4) for stage in STAGES},
        kv_length=position + len(path),
        budget=max(1, tree.num_verified),
        expected=draw(st.sampled_from((None, 2.5))),
        note="" if len(tree) > 1 else "no tree pays at this length",
    )


def stage_events(done: RoundDone) -> Iterator[Event]:
    """The finer events that would have preceded a round."""
    tree, turn, number = done.tree, done.turn, done.round
    height = max(tree.depth)
    levels = [tree.level(d) for d in range(1, height + 1)]
    yield BlockDrafted(
        turn=turn,
        round=number,
        token=[[tree.token[i] for i in level] for level in levels],
        draft_logp=[[tree.draft_logp[i] for i in level] for level in levels],
    )
    for d, level in enumerate(levels, start=1):
        yield DepthExpanded(
            turn=turn,
            round=number,
            depth=d,
            considered=64 * len(level),
            node=level,
            token=[tree.token[i] for i in level],
            parent=[tree.parent[i] for i in level],
            draft_logp=[tree.draft_logp[i] for i in level],
            head_logp=[tree.head_logp[i] for i in level],
            path_logp=[tree.path_logp[i] for i in level],
        )
    kept = [i for i, k in enumerate(tree.kept) if k]
    yield TreePruned(turn=turn, round=number, kept=kept)
    following = dict(zip(done.accepted, done.accepted[1:], strict=False))
    yield TreeVerified(
        turn=turn,
        round=number,
        node=kept,
        choice=[tree.token[following[i]] if i in following else done.bonus or 1 for i in kept],
        target_logp=[0.0 if i == 0 else -1.0 for i in kept],
    )


@st.composite
def runs(
    draw: st.DrawFn, *, max_turns: int = 2, max_rounds: int = 4, stages: bool | None = None
) -> list[Event]:
    """A whole run of a few turns, from its header to the last turn's end."""
    config = DecodeConfig(
        tree=TreeConfig(budget=draw(st.integers(1, 64))),
        stop=tuple(
            draw(st.lists(st.sampled_from(("<stop>", "日", "s", " \n", "the c")), max_size=3))
        ),
        max_new_tokens=draw(st.integers(1, 25)),
        stages=draw(st.booleans()) if stages is None else stages,
    )
    context = draw(st.lists(_token, min_size=1, max_size=6))
    prompt = draw(st.text(max_size=12))
    events: list[Event] = [
        RunStarted(
            created="2026-01-01T00:00:00Z",
            bundle="test",
            target={"name": "target", "layers": 2},
            drafter={"name": "drafter"},
            device="cpu",
            dtype="float32",
            versions={"dartree": "0"},
            config=config.to_dict(),
            prompt=prompt,
            prompt_ids=tuple(context),
            template="raw",
        )
    ]
    for turn in range(draw(st.integers(1, max_turns))):
        events += _turn(draw, turn, prompt, context, config, max_rounds)
        last = events[-1]
        assert isinstance(last, TurnFinished)
        context = [*context, *last.token_ids, *draw(st.lists(_token, min_size=1, max_size=3))]
    return events


def _turn(
    draw: st.DrawFn,
    turn: int,
    prompt: str,
    context: list[int],
    config: DecodeConfig,
    max_rounds: int,
) -> list[Event]:
    metrics = RunningMetrics()
    answer = _Answer(AnswerText(decode_text, config.stop), config.max_new_tokens)
    events: list[Event] = [TurnStarted(turn, prompt, tuple(context), "raw", config.to_dict())]
    root = draw(st.integers(0, VOCAB_SIZE - 1))
    answer.emit([root])
    delta, span = answer.text.delta()
    seconds = draw(st.sampled_from((0.0, 0.0123, 1.5)))
    events.append(
        PrefillDone(turn, len(context), 0, seconds, round(seconds + 0.001, 4), root, delta, span)
    )
    position = len(context)
    full = draw(st.booleans())
    for number in range(draw(st.integers(0, max_rounds))):
        if answer.reason is not None:
            break
        done = _round(draw, answer, turn, number, position, root, full)
        if config.stages:
            events += stage_events(done)
        events.append(done)
        position += len(done.accepted)
        root = done.bonus if done.bonus is not None else root
    if answer.reason is None:
        answer.reason = "cancelled"
        answer.text.flush()
    for event in events:
        metrics.update(event)
    delta, span = answer.text.delta()
    events.append(
        TurnFinished(
            turn=turn,
            reason=answer.reason,
            text=answer.text.text,
            token_ids=list(answer.ids),
            text_delta=delta,
            span=span,
            metrics=metrics.summary(),
        )
    )
    return events


@cache
def example_run() -> list[Event]:
    """A fixed run of two turns with stage events."""
    found: list[list[Event]] = []

    def long_enough(run: list[Event]) -> bool:
        done = [e for e in run if isinstance(e, RoundDone)]
        return len([d for d in done if d.turn == 0]) >= 2 and any(d.turn == 1 for d in done)

    @settings(max_examples=200, derandomize=True, database=None)
    @given(runs(stages=True))
    def search(run: list[Event]) -> None:
        if long_enough(run):
            found.append(run)

    search()
    return found[0]

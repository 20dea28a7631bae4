"""One engine, many requests: nothing of one shows in the next, however it ended."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from dartree_core.config import METHODS, DecodeConfig, TreeConfig
from dartree_core.draft import Drafter, growing
from dartree_core.engine import Decoder, Session
from dartree_core.engine import round as engine_round
from dartree_core.errors import ConfigError
from dartree_core.events import (
    BlockDrafted,
    DepthExpanded,
    PrefillDone,
    RoundDone,
    RunStarted,
    TreePruned,
    TreeVerified,
    TurnFinished,
    TurnStarted,
)
from dartree_core.models import Target
from tests.core import tiny

A = [5, 17, 3, 29, 11, 40, 2, 23]
B = [400, 8, 77, 301]
CONFIG = DecodeConfig(tree=TreeConfig(budget=16), max_new_tokens=14)
STAGED = CONFIG.with_changes(stages=True, max_new_tokens=8)


def decoder() -> Decoder:
    return tiny.trained("tied-uncorrected-first-slot")


def fresh(prompt: list[int], config: DecodeConfig = CONFIG) -> list[int]:
    return list(tiny.plain(decoder(), prompt, config).token_ids)


def ids(
    session: Session | None, prompt: list[int], config: DecodeConfig = CONFIG, **options: Any
) -> list[int]:
    found = decoder().generate(prompt, config, session=session, **options)
    return list(found.token_ids)


def assert_consistent(session: Session) -> None:
    """Both caches hold what plain prefill of the same ids would have put there."""
    assert session.cache.length == len(session.ids)
    assert session.draft_cache is not None
    assert session._covered() <= len(session.ids)
    target, draft = decoder().target, decoder().drafter
    assert draft is not None
    if not session.ids:
        return
    cache = target.new_cache()
    out = target.forward(torch.tensor(session.ids), cache, taps=draft.taps)
    cache.commit(torch.arange(len(session.ids)))
    assert_same_kv(session.cache, cache, len(session.ids))
    covered = session._covered()
    if covered == 0:
        return
    assert out.features is not None
    expected = draft.new_cache()
    draft.extend(out.features[:covered], expected)
    session.encode_pending()
    for ours, theirs in zip(session.draft_cache.context(), expected.context(), strict=True):
        torch.testing.assert_close(ours[0], theirs[0], atol=2e-4, rtol=1e-4)
        torch.testing.assert_close(ours[1], theirs[1], atol=2e-4, rtol=1e-4)


def assert_same_kv(ours: Any, theirs: Any, length: int) -> None:
    for mine, other in zip(ours.layers, theirs.layers, strict=True):
        for name in ("keys", "values"):
            a, b = getattr(mine, name)[:, :, :length], getattr(other, name)[:, :, :length]
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_requests_a_b_a_on_one_session_equal_fresh_ones(method: Any) -> None:
    config = CONFIG.with_changes(method=method)
    session = decoder().session()
    for prompt in (A, B, A):
        assert ids(session, prompt, config) == fresh(prompt)
        assert_consistent(session)


@pytest.mark.parametrize("method", METHODS)
def test_requests_a_b_a_on_one_decoder_equal_fresh_ones(method: Any) -> None:
    config = CONFIG.with_changes(method=method)
    assert [ids(None, p, config) for p in (A, B, A)] == [fresh(A), fresh(B), fresh(A)]


def test_two_sessions_interleaved_do_not_mix() -> None:
    found: dict[int, list[int]] = {}
    streams = {i: decoder().stream(p, CONFIG) for i, p in enumerate((A, B))}
    for events in itertools.zip_longest(*streams.values()):
        for i, event in enumerate(events):
            if isinstance(event, TurnFinished):
                found[i] = list(event.token_ids)
    assert found == {0: fresh(A), 1: fresh(B)}


EVENTS = len(tiny.events(tiny.trained("tied-uncorrected-first-slot"), A, STAGED))


@pytest.mark.parametrize("leave", ["cancel", "close"])
@pytest.mark.parametrize("index", range(EVENTS))
def test_leaving_at_any_event_then_running_again(index: int, leave: str) -> None:
    session = decoder().session()
    hooks = tiny.hooks(decoder().target)
    stream = decoder().stream(A, STAGED, session=session)
    seen = list(itertools.islice(stream, index + 1))
    if leave == "cancel":
        session.cancel()
        rest = list(stream)
        if not isinstance(seen[-1], TurnFinished):
            last = tiny.finish(rest)
            assert all(isinstance(e, TurnStarted) for e in rest[:-1])
            over = len(last.token_ids) == STAGED.max_new_tokens
            assert last.reason == ("length" if over else "cancelled")
            assert last.token_ids == fresh(A, STAGED)[: len(last.token_ids)]
            assert session.cancelled
    else:
        stream.close()
    assert tiny.hooks(decoder().target) == hooks
    assert_consistent(session)
    assert ids(session, B) == fresh(B)
    assert ids(session, A, STAGED) == fresh(A, STAGED)


def test_every_kind_of_event_was_left_at() -> None:
    kinds = {type(e) for e in tiny.events(decoder(), A, STAGED)}
    stages = {BlockDrafted, DepthExpanded, TreePruned, TreeVerified}
    assert kinds == {RunStarted, TurnStarted, PrefillDone, RoundDone, TurnFinished} | stages


def test_cancel_before_the_first_event_is_not_forgotten() -> None:
    session = decoder().session()
    stream = decoder().stream(A, CONFIG, session=session)
    session.cancel()
    found = list(stream)
    assert tiny.finish(found).reason == "cancelled"
    assert tiny.finish(found).token_ids == []
    assert not any(isinstance(e, PrefillDone) for e in found)
    assert session.cache.length == 0, "the prompt was read although nobody wanted it"


def test_cancel_between_chunks_of_a_long_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    from dartree_core.engine import decoder as engine_decoder

    monkeypatch.setattr(engine_decoder, "PREFILL_CHUNK", 3)
    session = decoder().session()
    passes = 0

    def during(*args: Any) -> None:
        nonlocal passes
        passes += 1
        session.cancel()

    with before(Target, "forward", during):
        result = decoder().generate(A, CONFIG, session=session)
    assert (passes, result.reason) == (1, "cancelled")
    assert_consistent(session)
    assert ids(session, A) == fresh(A)


def test_a_prompt_read_in_chunks_gives_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    from dartree_core.engine import decoder as engine_decoder

    monkeypatch.setattr(engine_decoder, "PREFILL_CHUNK", 3)
    session = decoder().session()
    assert ids(session, A) == fresh(A)
    assert_consistent(session)


@contextmanager
def before(owner: Any, name: str, action: Callable[..., None]) -> Iterator[None]:
    """Run `action` before every call of a method."""
    original = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        action(*args)
        return original(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, wrapped)
        yield


class InjectedError(RuntimeError):
    pass


def failing_at(call: int) -> Callable[..., None]:
    counter = itertools.count()

    def action(*args: Any) -> None:
        if next(counter) == call:
            raise InjectedError

    return action


def middle_layer() -> torch.nn.Module:
    """Its failure leaves hooks of the layers before it in flight."""
    return decoder().target.layers[2]


PLACES: dict[str, tuple[Callable[[], Any], str]] = {
    "target-pass": (lambda: Target, "forward"),
    "inside-the-target": (middle_layer, "forward"),
    "drafter-pass": (lambda: Drafter, "draft"),
    "drafter-context": (lambda: Drafter, "extend"),
    "head": (lambda: type(decoder().drafter.head), "correct"),  # type: ignore[union-attr]
    "builder": (lambda: growing, "finish"),
    "walk": (lambda: engine_round, "walk"),
    "commit": (lambda: Session, "commit"),
    "report": (lambda: engine_round, "describe_tree"),
}


@pytest.mark.parametrize("call", [0, 1, 2])
@pytest.mark.parametrize("place", PLACES)
def test_exception_leaves_session_and_decoder_usable(place: str, call: int) -> None:
    owner, name = PLACES[place]
    session = decoder().session()
    assert ids(session, B) == fresh(B)
    hooks = tiny.hooks(decoder().target)
    with before(owner(), name, failing_at(call)), pytest.raises(InjectedError):
        ids(session, A)
    assert tiny.hooks(decoder().target) == hooks
    assert_consistent(session)
    assert ids(session, A) == fresh(A)
    assert ids(None, B) == fresh(B)


def test_interrupt_half_way_through_compaction_leaves_the_session_usable() -> None:
    """A signal handler may raise anywhere, between two layers of the cache too."""
    session = decoder().session()
    layers = session.cache.layers
    committed = itertools.count()

    class Tripwire(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            for i, layer in enumerate(list.__iter__(self)):
                if i == 2 and next(committed) == 0:
                    raise KeyboardInterrupt
                yield layer

    config = CONFIG.with_changes(max_new_tokens=60)
    stream = decoder().stream(A, config, session=session)
    next(e for e in stream if isinstance(e, PrefillDone))
    session.cache.layers = Tripwire(layers)
    with pytest.raises(KeyboardInterrupt):
        list(stream)
    session.cache.layers = layers
    assert next(committed) > 0, "no round accepted scattered rows"
    assert_consistent(session)
    assert ids(session, A) == fresh(A)


# Conversations


def conversation(session: Session | None, methods: list[str], turns: list[list[int]]) -> list[Any]:
    """Each turn's prompt is everything before it, the answer included, and some new tokens."""
    history: list[int] = []
    out = []
    for method, new in zip(methods, turns, strict=True):
        history = [*history, *new]
        config = CONFIG.with_changes(method=method)
        answer = ids(session, history, config)
        assert answer == fresh(history), f"{method} after {len(history)} tokens"
        history += answer
        out.append((list(history), answer))
    return out


TURNS = [A, [9, 33], [250, 4, 4], [19]]


@pytest.mark.parametrize(
    "methods", [["dartree"] * 4, ["ddtree", "domino", "dflash", "ar"]], ids=str
)
def test_turns_share_a_prefix_with_target_and_drafter(methods: list[str]) -> None:
    session = decoder().session()
    history: list[int] = []
    for turn, (method, new) in enumerate(zip(methods, TURNS, strict=True)):
        history = [*history, *new]
        config = CONFIG.with_changes(method=method)
        found = tiny.events(decoder(), history, config, session=session)
        prefill = next(e for e in found if isinstance(e, PrefillDone))
        # Everything but the last token of the last answer, which has no keys yet.
        assert prefill.reused_tokens == (len(history) - len(new) - 1 if turn else 0)
        assert prefill.turn == turn
        assert any(isinstance(e, RunStarted) for e in found) == (turn == 0)
        answer = list(tiny.finish(found).token_ids)
        assert answer == fresh(history)
        history += answer
        assert_consistent(session)


def test_a_reused_prefix_does_not_cost_acceptance() -> None:
    """The drafter's context must cover the reused positions as well."""
    session = decoder().session()
    first = ids(session, A)
    prompt = [*A, *first, 9, 33]
    config = CONFIG.with_changes(max_new_tokens=40)
    warm = decoder().generate(prompt, config, session=session).metrics
    cold = decoder().generate(prompt, config).metrics
    assert warm["acceptance_histogram"] == cold["acceptance_histogram"]
    assert warm["mean_acceptance_length"] > 1.5


@pytest.mark.parametrize("order", list(itertools.product(["ar", "dartree"], repeat=3)), ids=str)
def test_plain_and_drafting_turns_mix(order: tuple[str, ...]) -> None:
    """A plain turn reads no features, so the drafter knows less than the target after it."""
    session = decoder().session()
    conversation(session, [*order, "dartree"], TURNS)
    assert_consistent(session)


def test_edited_history_forgets_what_was_edited() -> None:
    session = decoder().session()
    history = conversation(session, ["dartree", "dartree"], TURNS[:2])[-1][0]
    edited = [*history[:6], 99, *history[7:]]
    found = tiny.events(decoder(), edited, CONFIG, session=session)
    assert next(e for e in found if isinstance(e, PrefillDone)).reused_tokens == 6
    assert list(tiny.finish(found).token_ids) == fresh(edited)
    shortened = history[:5]
    assert ids(session, shortened) == fresh(shortened)
    assert_consistent(session)


def test_the_same_prompt_again_reads_one_token() -> None:
    session = decoder().session()
    for expected in (0, len(A) - 1):
        found = tiny.events(decoder(), A, CONFIG, session=session)
        assert next(e for e in found if isinstance(e, PrefillDone)).reused_tokens == expected
        assert list(tiny.finish(found).token_ids) == fresh(A)


@pytest.mark.parametrize("limit", range(1, 12))
def test_turn_cut_by_its_limit_leaves_no_later_tokens_in_the_caches(limit: int) -> None:
    session = decoder().session()
    config = CONFIG.with_changes(max_new_tokens=limit)
    answer = ids(session, A, config)
    assert session.ids == [*A, *answer[:-1]]
    assert_consistent(session)


def test_turn_ended_inside_an_accepted_path_leaves_no_later_tokens_in_the_caches() -> None:
    """The verified path went past the end; the conversation goes on from the end."""
    config = CONFIG.with_changes(max_new_tokens=40, budget=64)
    whole = fresh(A, config)
    cut_paths = 0
    for at in range(2, len(whole), 2):
        twin = copy.copy(decoder())
        twin.eos = frozenset([whole[at]])
        session = twin.session()
        found = tiny.events(twin, A, config, session=session)
        answer = list(tiny.finish(found).token_ids)
        assert answer == whole[: whole.index(whole[at]) + 1]
        last = tiny.rounds(found)[-1:]
        cut_paths += any(len(e.tokens) < len(e.accepted) - 1 for e in last)
        assert session.ids == [*A, *answer[:-1]]
        assert_consistent(session)
        following = [*A, *answer, 9]
        assert ids(session, following) == fresh(following)
    assert cut_paths, "no turn ended before the end of an accepted path"


def test_retuned_tree_holds_from_the_next_round_on() -> None:
    session = decoder().session()
    config = CONFIG.with_changes(max_new_tokens=30, budget=16)
    sizes = []
    found = []
    for event in decoder().stream(A, config, session=session):
        found.append(event)
        if isinstance(event, RoundDone):
            sizes.append((event.budget, event.tree.num_verified))
            if event.round == 1:
                session.retune(TreeConfig(budget=3))
    assert [b for b, _ in sizes] == [16, 16] + [3] * (len(sizes) - 2)
    assert all(n <= b for b, n in sizes)
    assert list(tiny.finish(found).token_ids) == fresh(A, config)


def test_retune_before_the_first_round_counts() -> None:
    session = decoder().session()
    stream = decoder().stream(A, CONFIG, session=session)
    session.retune(TreeConfig(budget=2))
    assert {e.budget for e in tiny.rounds(list(stream))} == {2}


def test_retuning_ends_with_the_turn() -> None:
    session = decoder().session()
    for _ in decoder().stream(A, CONFIG, session=session):
        pass
    session.retune(TreeConfig(budget=2))
    found = tiny.events(decoder(), B, CONFIG, session=session)
    assert {e.budget for e in tiny.rounds(found)} == {16}


def test_impossible_block_size_is_refused_when_retuned() -> None:
    """Not in the middle of a turn, which it would end."""
    session = decoder().session()
    with pytest.raises(ConfigError, match="block_size 99"):
        session.retune(TreeConfig(block_size=99))
    assert ids(session, A) == fresh(A)


@pytest.mark.parametrize("bonus", [0.0, -0.4])
def test_what_is_verified_does_not_depend_on_who_looks(bonus: float) -> None:
    """At basic detail nobody sees what was pruned, so not all of it is grown."""
    basic = CONFIG.with_changes(budget=3, depth_bonus=bonus, max_new_tokens=40)
    trees = [
        [done.tree for done in tiny.rounds(tiny.events(decoder(), A, config))]
        for config in (basic, basic.with_changes(detail="full"), basic.with_changes(stages=True))
    ]
    kept = [[[t for t, k in zip(x.token, x.kept, strict=True) if k] for x in run] for run in trees]
    assert kept[0] == kept[1] == kept[2]
    sizes = [sum(len(tree) for tree in run) for run in trees]
    assert sizes[0] < sizes[1] == sizes[2]

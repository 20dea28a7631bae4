from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dartree_core.events import (
    Event,
    PrefillDone,
    Provenance,
    RoundDone,
    TurnFinished,
    TurnStarted,
    decode,
    encode,
)
from dartree_core.metrics import RunningMetrics, aggregate
from dartree_core.tree import BonusFate, DraftTree, State
from tests.core.strategies import runs


def chain(depth: int, hits: int, pruned: int = 0) -> DraftTree:
    """A chain of `depth` verified nodes below the root, `hits` of them accepted; then pruned."""
    n = 1 + depth + pruned
    accepted: list[State] = ["hit"] * (1 + hits)
    passed: list[State] = ["walked_past"] if hits < depth else []
    below: list[State] = ["unreached"] * (depth - hits - 1)
    dropped: list[State] = ["pruned"] * pruned
    zeros = [0.0] * n
    return DraftTree(
        token=list(range(n)),
        parent=list(range(-1, n - 1)),
        depth=list(range(n)),
        slot=list(range(-1, n - 1)),
        draft_logp=zeros,
        head_logp=zeros,
        path_logp=zeros,
        select=zeros,
        kept=[True] * (1 + depth) + [False] * pruned,
        state=[*accepted, *passed, *below, *dropped],
    )


def round_done(
    depth: int,
    hits: int,
    *,
    emitted: int | None = None,
    pruned: int = 0,
    fate: BonusFate | None = "not_proposed",
    ms: float = 10.0,
) -> RoundDone:
    """A round that accepted `hits` of `depth`; cut to `emitted` tokens where the turn ended."""
    tree = chain(depth, hits, pruned)
    count = hits + 1 if emitted is None else emitted
    drafted: list[Provenance] = ["draft"] * hits
    return RoundDone(
        turn=0,
        round=0,
        position=0,
        tree=tree,
        accepted=list(range(hits + 1)),
        tokens=[*tree.token[1 : hits + 1], 99][:count],
        provenance=[*drafted, "bonus"][:count],
        bonus=99 if count > hits else None,
        bonus_fate=fate if count > hits else None,
        text_delta="",
        span=(0, 0),
        ms={"draft": ms, "verify": 2 * ms},
        kv_length=0,
        budget=64,
    )


def counted(*events: Event, per_step: int | None = 0) -> dict[str, Any]:
    metrics = RunningMetrics(per_step)
    for event in events:
        metrics.update(event)
    return metrics.summary()


PREFILL = PrefillDone(0, 5, 0, 0.5, 0.6, 7, "", (0, 0))


def test_the_figures_of_a_small_turn_by_hand() -> None:
    got = counted(
        PREFILL,
        round_done(4, 2, pruned=3),
        round_done(4, 4, fate="not_expanded"),
        round_done(2, 0),
        round_done(0, 0),  # plain
        round_done(4, 3, emitted=2),  # the turn ended inside the accepted path
        per_step=None,
    )
    assert got == {
        "mean_acceptance_length": 3.0,  # (4 steps + 8 accepted) / 4
        "draft_acceptance_rate": 0.5714,  # 8 / 14
        "acceptance_histogram": [1, 0, 2, 0, 1],
        "acceptance_histogram_by_draft_length": {"2": [1, 0, 0], "4": [0, 0, 2, 0, 1]},
        "acceptance_survival_by_depth": [0.75, 0.75, 0.25, 0.25],
        "acceptance_conditional_by_depth": [0.75, 1.0, 0.3333, 1.0],
        "num_spec_steps": 4,
        "num_plain_steps": 1,
        "num_accepted_draft_tokens": 8,
        "num_draft_tokens": 14,
        "num_spec_tokens": 4,
        "num_tree_nodes": 14,
        "num_supertree_nodes": 17,
        "tree_depth": {"mean": 3.5, "max": 4},
        "bonus_fates": {"not_expanded": 1, "not_proposed": 2},
        "num_emitted_tokens": 13,  # 1 + 3 + 5 + 1 + 1 + 2
        "ttft_s": 0.6,
        "prefill_s": 0.5,
        "decode_s": 0.15,
        "tokens_per_second": 80.0,  # 12 / 0.15
        "tokens_per_second_with_prefill": 20.0,  # 13 / 0.65
        "stage_ms_mean": {
            "draft": 10.0,
            "tree_build": 0.0,
            "tree_setup": 0.0,
            "verify": 20.0,
            "commit": 0.0,
        },
        "stage_ms_total": {
            "draft": 50.0,
            "tree_build": 0.0,
            "tree_setup": 0.0,
            "verify": 100.0,
            "commit": 0.0,
        },
        "per_step_accepted": [2, 4, 0, 2],
        "per_step_drafted": [4, 4, 2, 4],
        "per_step_omitted": 0,
    }


def test_depths_no_tree_reached_do_not_count_against_acceptance() -> None:
    got = counted(round_done(1, 1), round_done(3, 2))
    assert got["acceptance_survival_by_depth"] == [1.0, 0.5, 0.0]
    assert got["acceptance_conditional_by_depth"] == [1.0, 1.0, 0.0]


def test_nothing_is_invented_where_nothing_happened() -> None:
    got = counted()
    assert got["mean_acceptance_length"] is None
    assert got["draft_acceptance_rate"] is None
    assert got["tokens_per_second"] is None
    assert got["ttft_s"] is None
    assert got["tree_depth"] == {"mean": None, "max": 0}
    assert got["acceptance_histogram"] == [0]
    assert "per_step_accepted" not in got


def test_plain_decoding_has_speed_but_no_acceptance() -> None:
    got = counted(PREFILL, round_done(0, 0), round_done(0, 0))
    assert (got["num_plain_steps"], got["num_spec_steps"]) == (2, 0)
    assert got["mean_acceptance_length"] is None
    assert got["bonus_fates"] == {}
    assert got["tokens_per_second"] == round(2 / 0.06, 4)


@given(runs())
def test_a_replay_has_the_metrics_of_the_live_run(events: list[Event]) -> None:
    live, replayed = RunningMetrics(None), RunningMetrics(None)
    for event in events:
        back = decode(json.loads(json.dumps(encode(event), allow_nan=False)))
        assert back is not None
        live.update(event)
        replayed.update(back)
        assert replayed.summary() == live.summary()


@given(runs())
def test_a_recorded_turn_carries_the_metrics_its_events_give(events: list[Event]) -> None:
    metrics = RunningMetrics()
    for event in events:
        if isinstance(event, TurnStarted):
            metrics = RunningMetrics()
        back = decode(json.loads(json.dumps(encode(event), allow_nan=False)))
        assert back is not None
        metrics.update(back)
        if isinstance(back, TurnFinished):
            assert back.metrics == metrics.summary()


@given(runs())
def test_figures_agree_with_each_other(events: list[Event]) -> None:
    got = counted(*events, per_step=None)
    histogram = got["acceptance_histogram"]
    steps = got["num_spec_steps"]
    assert sum(histogram) == steps
    assert sum(a * n for a, n in enumerate(histogram)) == got["num_accepted_draft_tokens"]
    by_length = got["acceptance_histogram_by_draft_length"]
    assert sum(int(d) * sum(row) for d, row in by_length.items()) == got["num_draft_tokens"]
    assert got["per_step_accepted"].count(0) == (histogram[0] if steps else 0)
    assert sum(got["per_step_drafted"]) == got["num_draft_tokens"]
    for k, survival in enumerate(got["acceptance_survival_by_depth"], start=1):
        assert survival == round(sum(histogram[k:]) / steps, 4)
    assert got["num_draft_tokens"] <= got["num_tree_nodes"] <= got["num_supertree_nodes"]
    finished = [e for e in events if isinstance(e, TurnFinished)]
    assert got["num_emitted_tokens"] == sum(len(e.token_ids) for e in finished)


def leaves(value: Any) -> list[Any]:
    match value:
        case dict():
            return [x for key in sorted(value) for x in (key, *leaves(value[key]))]
        case list():
            return [x for item in value for x in leaves(item)]
        case _:
            return [value]


@given(runs(max_turns=3))
def test_several_turns_add_up(events: list[Event]) -> None:
    parts: dict[int, RunningMetrics] = {}
    for event in events:
        if isinstance(event, PrefillDone | RoundDone):
            parts.setdefault(event.turn, RunningMetrics(None)).update(event)
    together = aggregate(parts.values(), per_step=None).summary()
    straight = counted(*events, per_step=None)
    assert set(together) == set(straight)
    for key, value in straight.items():
        for one, other in zip(leaves(together[key]), leaves(value), strict=True):
            if isinstance(other, float):
                # Times were added in another order, so their last digit may differ.
                assert one == pytest.approx(other, abs=2e-4, rel=1e-6), key
            else:
                assert one == other, key


@given(runs(), st.integers(1, 3))
def test_lists_per_step_stay_within_their_limit(events: list[Event], limit: int) -> None:
    capped, whole = counted(*events, per_step=limit), counted(*events, per_step=None)
    assert capped["per_step_accepted"] == whole["per_step_accepted"][:limit]
    assert capped["per_step_drafted"] == whole["per_step_drafted"][:limit]
    assert capped["per_step_omitted"] == max(0, whole["num_spec_steps"] - limit)


def test_memory_does_not_grow_with_rounds() -> None:
    import pickle

    short, long = RunningMetrics(), RunningMetrics()
    done = round_done(4, 2)
    for _ in range(100):
        short.update(done)
    for _ in range(10_000):
        long.update(done)
    assert len(pickle.dumps(vars(long))) <= len(pickle.dumps(vars(short))) + 64


def test_times_finer_than_a_trace_keeps_change_nothing() -> None:
    """Rounding is idempotent, so a sloppy producer still replays to the same figures."""
    fine = round_done(2, 1, ms=1.23456789)
    back = decode(encode(fine))
    assert back is not None
    assert counted(fine) == counted(back)

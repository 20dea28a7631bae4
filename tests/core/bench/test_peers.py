"""Other engines on real models: they must say what plain decoding says, and be timed fairly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dartree_core.bench.peers import PeerSource, prepare
from dartree_core.bench.plan import PEERS
from dartree_core.bench.records import Case, Row, Sample
from dartree_core.bench.run import Bench
from dartree_core.bench.stop import Stop
from dartree_core.metrics import RunningMetrics
from tests.core import tiny

Make = Callable[..., Bench]


@pytest.fixture
def source() -> PeerSource:
    target, draft = (tiny.CHECKPOINTS / name for name in tiny.TRAINED["tied"])
    return PeerSource(target, draft, target)


def sample(case: Case, method: str) -> Sample:
    return next(s for s in case.samples if s.variant.split()[0] == method)


def steps(found: Sample) -> dict[str, Any]:
    return RunningMetrics.of_turn(found.turns[0].metrics).summary()


def test_greedy_peers_say_what_plain_decoding_says(make: Make, source: PeerSource) -> None:
    bench = make(["dflash", *PEERS], source=source, max_new_tokens=40)
    assert not bench.missing
    for case in bench.run():
        for found in case.samples:
            assert found.identical is True, (found.variant, found.error)
            assert found.turns[0].reason == "length"
            assert 0 < found.decode_tokens <= 39
            assert found.decode_s > 0
            assert found.prefill_s > 0
        assert steps(sample(case, "hf"))["num_plain_steps"] == 39
        assert steps(sample(case, "hf-assistant"))["mean_acceptance_length"] > 4


def test_transformers_dflash_accepts_what_our_chain_accepts(make: Make, source: PeerSource) -> None:
    for case in make(["dflash", "hf-dflash"], source=source, max_new_tokens=60).run():
        ours, theirs = steps(sample(case, "dflash")), steps(sample(case, "hf-dflash"))
        assert theirs["num_spec_steps"] == ours["num_spec_steps"] + ours["num_plain_steps"]
        # Ours drafts no deeper than the answer can still get, so the last round may differ.
        assert abs(theirs["num_accepted_draft_tokens"] - ours["num_accepted_draft_tokens"]) <= 1


def test_sampling_peers_run_but_are_not_compared(make: Make, source: PeerSource) -> None:
    bench = make(["dartree", "hf", "hf-lookup"], source=source, temperatures=[1.0])
    for case in bench.run():
        assert not any(s.error for s in case.samples)
        assert [s.identical for s in case.samples] == [True, True, None, None]
        assert len(sample(case, "hf").turns[0].token_ids) == 20


def test_a_peers_own_seed_repeats(make: Make, source: PeerSource) -> None:
    runs = [make(["hf"], source=source, temperatures=[1.0], seed=4).run() for _ in range(2)]
    first, second = ([sample(c, "hf").turns[0].token_ids for c in run] for run in runs)
    assert first == second


def test_a_peer_that_cannot_run_says_why(make: Make, decoder: Any) -> None:
    target = tiny.CHECKPOINTS / "target_tied"
    bench = make(["hf", "hf-assistant", "hf-dflash"], source=PeerSource(target))
    assert set(bench.missing) == {"hf-assistant", "hf-dflash"}
    assert "--assistant" in bench.missing["hf-assistant"]
    assert "--draft" in bench.missing["hf-dflash"]
    assert [v.method for v in bench.plan.variants] == ["ar", "hf"]

    shifted = PeerSource(target, tiny.CHECKPOINTS / "draft_untied_p0_s1")
    _, missing = prepare(["hf-dflash"], decoder, shifted, Stop())
    assert "first row" in missing["hf-dflash"]
    nowhere = PeerSource(target, Path("nowhere"), Path("nowhere"))
    _, missing = prepare(["hf-dflash", "hf-assistant"], decoder, nowhere, Stop())
    assert all("nowhere" in reason for reason in missing.values())


def test_a_peer_that_fails_at_its_first_tokens_is_left_out(
    make: Make, source: PeerSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make(["dartree", "hf"], source=source)

    def fail(*_: Any) -> Any:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(bench.speakers["hf"], "answer", fail)
    cases = bench.run()
    assert "no such kernel" in bench.missing["hf"]
    assert {s.variant.split()[0] for c in cases for s in c.samples} == {"ar", "dartree"}


def test_a_first_prompt_that_nobody_can_answer_costs_no_peer(
    make: Make, source: PeerSource
) -> None:
    rows = [Row("long", (), (3,) * 600), Row("fine", (), (5, 17))]
    bench = make(["hf"], source=source, data={"x": rows})
    long, fine = bench.run()
    assert not bench.missing
    assert all(s.error for s in long.samples)
    assert [s.identical for s in fine.samples] == [True, True]


def test_a_lean_target_gives_peers_a_model_of_their_own(decoder: Any, source: PeerSource) -> None:
    import torch

    from dartree_core.models import load_target

    lean = load_target(source.target, device=torch.device("cpu"), dtype=torch.float32, lean=True)
    ours = type(decoder)(lean)
    assert source.model(decoder) is decoder.target.model
    copy = source.model(ours)
    assert copy is not lean.model
    assert source.model(ours) is copy
    speakers, missing = prepare(["hf"], ours, source, Stop())
    assert not missing
    assert speakers["hf"].dtype == "float32"  # type: ignore[attr-defined]


def test_stopping_ends_a_peers_answer(make: Make, source: PeerSource) -> None:
    bench = make(["hf"], source=source, max_new_tokens=450)
    model = source.model(bench.asker._decoder)
    count: list[int] = []

    def watch(*_: Any) -> None:
        count.append(1)
        if len(count) == 20:
            bench.stop.ask()

    hook = model.register_forward_hook(watch)
    try:
        assert bench.run() == []
    finally:
        hook.remove()
    assert bench.ended == "interrupted"
    assert len(count) < 60

"""What `--profile` says: shapes counted right, time attributed once, nothing left behind."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from dartree_core.cli.profile import profile_rows
from dartree_core.config import DecodeConfig
from dartree_core.engine import Decoder
from dartree_core.events import STAGES, PrefillDone, RoundDone
from dartree_core.models import load_target
from dartree_core.models.memory import Memory
from dartree_core.profile import ceilings
from dartree_core.profile.ceilings import Ceilings, ceilings_of
from dartree_core.profile.probe import Pass, probing
from dartree_core.profile.profile import PassFigures, Profile
from dartree_core.profile.work import Work, draft_work, target_work
from tests.core import tiny

PROMPT = [7, 100, 31, 8, 250]
CONFIG = DecodeConfig(max_new_tokens=24).with_changes(budget=8)
QUICK = Ceilings(2e9, 4e9)


@pytest.fixture
def decoder(monkeypatch: pytest.MonkeyPatch) -> Decoder:
    monkeypatch.setattr(ceilings, "measure", lambda target: QUICK)
    trained = tiny.trained("tied")
    return Decoder(trained.target, trained.drafter)


@pytest.mark.parametrize("name", ["target_tied", "target_untied"])
def test_lean_and_general_targets_agree_about_their_work(name: str) -> None:
    path = tiny.CHECKPOINTS / name
    cpu, exact = torch.device("cpu"), torch.float32
    lean = target_work(load_target(path, device=cpu, dtype=exact, lean=True))
    general = load_target(path, device=cpu, dtype=exact)
    assert lean == target_work(general)
    cache = general.new_cache()
    general.forward(torch.arange(40), cache)
    cache.commit(torch.arange(40))
    per_position = cache.nbytes / cache.capacity
    assert lean.kv_bytes == per_position
    assert lean.bytes(40) == lean.weight_bytes + 40 * lean.kv_bytes
    assert lean.flops(3, 0) == 6 * lean.weights


def test_a_drafts_work_counts_the_backbone_and_its_output() -> None:
    drafter = tiny.trained("tied").drafter
    assert drafter is not None
    layers = sum(
        p.numel() for la in drafter.backbone.layers for p in la.parameters() if p.dim() > 1
    )
    spec = drafter.spec
    assert draft_work(drafter).weights == layers + spec.draft_vocab_size * spec.hidden_size


def test_figures_follow_from_the_median_pass() -> None:
    work = Work(weights=500, weight_bytes=1000, kv_bytes=10, attention=2)
    passes = [Pass("target", 4, 50, ms) for ms in (1.0, 2.0, 90.0)]
    found = PassFigures.of(passes, work, Ceilings(3e6, 8e6))
    assert found is not None
    assert (found.count, found.ms, found.rows, found.bytes) == (3, 2.0, 4, 1500)
    assert found.bandwidth == 750_000
    assert found.bandwidth_share == 0.25
    assert found.flops == 2 * 4 * 600
    assert found.flop_share == 0.3
    assert PassFigures.of([], work, QUICK) is None


def test_a_run_is_taken_apart(decoder: Decoder) -> None:
    rounds: list[RoundDone] = []
    with probing(decoder) as probe:
        profile = Profile(decoder, probe)
        for event in decoder.stream(PROMPT, CONFIG):
            profile.update(event)
            if isinstance(event, RoundDone):
                rounds.append(event)
        profile.step_plainly(decoder.encode(PROMPT), CONFIG)
        found = profile.to_dict()
    assert found["rounds"] == len(rounds)
    total = sum(sum(done.ms.values()) for done in rounds)
    assert found["round_ms"] * len(rounds) == pytest.approx(total, rel=1e-3)
    assert list(found["stages"]) == list(STAGES)
    assert sum(s["share"] for s in found["stages"].values()) == pytest.approx(1, abs=1e-3)
    assert 0 < found["host"]["share"] < 1
    assert {"ar_step", "verify", "draft"} == set(found["passes"])
    assert found["passes"]["ar_step"]["rows"] == 1
    assert found["passes"]["ar_step"]["count"] >= 11
    assert found["passes"]["verify"]["count"] == sum(done.tree.num_verified > 0 for done in rounds)
    assert found["machine"]["copy_bytes_s"] == 2e9
    json.dumps(found)
    text = dict(profile_rows(found))
    assert text["verify pass"].count("of a") == 2
    assert "outside the models' passes" in text["host"]


def test_time_of_models_is_not_time_of_the_host(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slower target moves the host's share down, not up."""
    kind = type(decoder.target)
    original = kind.forward

    def dawdling(self: Any, *args: Any, **options: Any) -> Any:
        end = torch.randn(200, 200)
        for _ in range(40):
            end = end @ end.T / 200
        return original(self, *args, **options)

    monkeypatch.setattr(kind, "forward", dawdling)
    with probing(decoder) as probe:
        profile = Profile(decoder, probe)
        for event in decoder.stream(PROMPT, CONFIG):
            profile.update(event)
        found = profile.to_dict()
    verify = found["stages"]["verify"]["ms"]
    assert found["host"]["ms"] < found["round_ms"] - 0.5 * verify


def test_reading_the_prompt_is_no_rounds_work(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type(decoder.drafter)
    original = kind.extend
    calls = []

    def dawdling(self: Any, *args: Any, **options: Any) -> Any:
        calls.append(args)
        time.sleep(0.5 if len(calls) == 1 else 0)
        return original(self, *args, **options)

    monkeypatch.setattr(kind, "extend", dawdling)
    with probing(decoder) as probe:
        profile = Profile(decoder, probe)
        for event in decoder.stream(PROMPT, CONFIG):
            assert calls or not isinstance(event, PrefillDone)
            profile.update(event)
        found = profile.to_dict()
    assert found["host"]["ms"] > 0
    assert found["passes"]["draft"]["ms"] < 250


@pytest.mark.parametrize("asked", [None, 3])
def test_drafts_count_the_rows_they_had(decoder: Decoder, asked: int | None) -> None:
    assert decoder.drafter is not None
    with probing(decoder) as probe:
        profile = Profile(decoder, probe)
        for event in decoder.stream(PROMPT, CONFIG.with_changes(block_size=asked)):
            profile.update(event)
        found = profile.to_dict()["passes"]["draft"]
    assert found["rows"] == decoder.drafter.block_size(asked)
    assert found["flops"] == draft_work(decoder.drafter).flops(found["rows"], 0)


def test_nothing_stays_behind(decoder: Decoder) -> None:
    assert decoder.drafter is not None
    owners = (decoder.target, decoder.drafter, decoder.drafter.head)
    before = [set(vars(owner)) for owner in owners]
    with probing(decoder):
        assert "forward" in vars(decoder.target)
        with pytest.raises(IndexError):
            decoder.target.forward(torch.tensor([10**6]), decoder.target.new_cache())
    assert [set(vars(owner)) for owner in owners] == before


def test_a_plain_decoder_can_be_profiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "measure", lambda target: QUICK)
    decoder = Decoder(tiny.target("llama"))
    config = DecodeConfig("ar", max_new_tokens=12)
    with probing(decoder) as probe:
        profile = Profile(decoder, probe)
        for event in decoder.stream([3, 4, 5], config):
            profile.update(event)
        found = profile.to_dict()
    assert set(found["passes"]) == {"ar_step"}
    assert found["stages"]["draft"]["ms"] == 0


def test_ceilings_are_measured_and_only_ever_rise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tiny.target("llama")
    small = ceilings.measure(target, ceilings.Load(copied=2**16, size=64, rows=8))
    assert small.copy_bytes_s > 0
    assert small.flops_s > 0
    memory = Memory(tmp_path / "measured.json")
    for found, wanted in (((5.0, 5.0),) * 2, ((3.0, 9.0), (5.0, 9.0)), ((1.0, 1.0), (5.0, 9.0))):
        monkeypatch.setattr(ceilings, "measure", lambda target, found=found: Ceilings(*found))
        assert ceilings_of(target, memory) == Ceilings(*wanted)

"""Training for real, on a tiny target: it learns, it resumes exactly, its output loads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from dartree_core.config import METHODS, DecodeConfig, Method, TreeConfig
from dartree_core.draft.checkpoint import read_checkpoint
from dartree_core.draft.drafter import load_drafter
from dartree_core.engine import Decoder
from dartree_core.errors import CheckpointError, ConfigError
from dartree_core.models import Target, load_target
from dartree_core.parallel.world import World
from dartree_core.train.corpus import Corpus, Sample, write_shard
from dartree_core.train.curve import CurveLog
from dartree_core.train.drive import drive
from dartree_core.train.features import FeatureSource
from dartree_core.train.forced import forced_acceptance
from dartree_core.train.initialise import Start
from dartree_core.train.recipe import Recipe
from dartree_core.train.run import Inputs, Run, open_run
from tests.core.train.conftest import CHECKPOINTS, settings

DRAFTING: list[Method] = [m for m in METHODS if m != "ar"]


def begin(out: Path, recipe: Recipe, target: Target, corpus: Corpus, **others: Any) -> Run:
    options = {"held_out": None, "start": Start("target"), **others}
    return open_run(recipe, Inputs(target=target, corpus=corpus, out=out, **options), World())


def losses(run: Run, most: int | None = None) -> list[float]:
    found = []
    for report in run.trainer.steps():
        found.append(report.loss)
        if len(found) == most:
            break
    return found


def acceptance(folder: Path, target: Target, held_out: Corpus, method: Method) -> float:
    drafter = load_drafter(folder, target)
    source = FeatureSource(target, held_out, drafter.taps, torch.float32)
    tree = TreeConfig(budget=16)
    return forced_acceptance(drafter, source, range(len(held_out)), method, tree).length


@pytest.fixture(scope="module")
def trained(
    tmp_path_factory: pytest.TempPathFactory,
    recipe: Recipe,
    target: Target,
    corpus: Corpus,
    held_out: Corpus,
) -> tuple[Path, dict[Method, float]]:
    """A drafter trained from nothing, and what every method accepted before."""
    out = tmp_path_factory.mktemp("run") / "drafter"
    run = begin(out, recipe, target, corpus, held_out=held_out)
    run.trainer.save()
    before = {m: acceptance(out, target, held_out, m) for m in DRAFTING}
    losses(run)
    return out, before


def test_training_beats_the_untrained_drafter(
    trained: tuple[Path, dict[Method, float]], target: Target, held_out: Corpus
) -> None:
    out, before = trained
    for method in DRAFTING:
        after = acceptance(out, target, held_out, method)
        assert before[method] < 1.5
        assert after > before[method] + 1.0, method


def test_the_head_helps(
    trained: tuple[Path, dict[Method, float]], target: Target, held_out: Corpus
) -> None:
    out, _ = trained
    base, corrected = (acceptance(out, target, held_out, m) for m in ("dflash", "domino"))
    assert corrected > base


def test_a_prefix_is_taught_and_measured_as_it_decodes(
    trained: tuple[Path, dict[Method, float]],
    tmp_path: Path,
    recipe: Recipe,
    target: Target,
    corpus: Corpus,
    held_out: Corpus,
) -> None:
    out, _ = trained
    prefixed = settings(recipe, drafter={"prefix_len": 2})
    loss = {"head_start": 1.0, "head_end": 1.0, "head_ramp": 0.0}
    run = begin(
        tmp_path,
        settings(prefixed, loss=loss),
        target,
        corpus,
        held_out=held_out,
        start=Start.parse(str(out)),
    )
    found = run.trainer.measure()
    assert found is not None
    assert found.corrected[:2] == found.base[:2]
    assert found.corrected[2:] != found.base[2:]
    report = next(iter(run.trainer.steps()))
    assert report.counts[1][:2] == report.counts[2][:2]


def test_walking_known_answers_equals_decoding(
    trained: tuple[Path, dict[Method, float]], target: Target, held_out: Corpus
) -> None:
    out, _ = trained
    drafter = load_drafter(out, target)
    decoder = Decoder(target, drafter)
    sample = held_out.samples[0]
    prompt = sample.tokens[: sample.answer].tolist()
    length = len(sample.tokens) - sample.answer
    found = decoder.generate(
        prompt, DecodeConfig(tree=TreeConfig(budget=16), max_new_tokens=length)
    )
    assert list(found.token_ids) == sample.tokens[sample.answer :].tolist()
    source = FeatureSource(target, Corpus((sample,)), drafter.taps, torch.float32)
    forced = forced_acceptance(drafter, source, [0], "dartree", TreeConfig(budget=16))
    histogram = found.metrics["acceptance_histogram"]
    # Decoding also has the last rounds, which the answer's end cuts short.
    assert all(a <= b for a, b in zip(forced.histogram, histogram, strict=False))
    assert 0 <= sum(histogram) - forced.rounds <= drafter.spec.num_slots()


def test_the_output_is_a_drafter_in_the_public_layout(
    trained: tuple[Path, dict[Method, float]], recipe: Recipe
) -> None:
    out, _ = trained
    assert {p.name for p in out.iterdir()} == {
        "README.md",
        "config.json",
        "model.safetensors",
        "training",
    }
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == ["DFlashDraftModel"]
    assert config["dflash_config"]["projector_type"] == "domino"
    assert config["draft_vocab_size"] == recipe.drafter.draft_vocab
    card = (out / "README.md").read_text()
    assert card.startswith("---\n")
    assert "2,560 blocks in 80 steps" in card
    assert "48 answers by the target itself" in card


def test_a_resumed_run_repeats_the_unbroken_one(
    tmp_path: Path, recipe: Recipe, target: Target, corpus: Corpus
) -> None:
    recipe = settings(recipe, run={"steps": 8, "save_seconds": 0.0})
    whole = losses(begin(tmp_path / "whole", recipe, target, corpus))
    first = losses(begin(tmp_path / "broken", recipe, target, corpus), 3)
    again = begin(tmp_path / "broken", recipe, target, corpus)
    assert again.resumed
    assert first + losses(again) == whole
    states = [tmp_path / n / "training" / "state.safetensors" for n in ("whole", "broken")]
    assert _weights(states[0]) == _weights(states[1])


def test_a_measurement_cut_by_a_kill_is_made_up_for(
    tmp_path: Path, recipe: Recipe, target: Target, corpus: Corpus, held_out: Corpus
) -> None:
    measured = settings(recipe, run={"steps": 2, "eval_steps": 2, "eval_sequences": 2})
    losses(begin(tmp_path, measured, target, corpus, held_out=held_out))
    again = begin(tmp_path, measured, target, corpus, held_out=held_out)
    assert drive(again, measured, tmp_path)
    entries = CurveLog.read(again.curve.path)
    assert [entry["step"] for entry in entries if "eval" in entry] == [2]
    third = begin(tmp_path, measured, target, corpus, held_out=held_out)
    assert third.measure_if_missed() is None


def test_averaging_can_begin_late(
    tmp_path: Path, recipe: Recipe, target: Target, corpus: Corpus
) -> None:
    plain = settings(recipe, run={"steps": 3}, optimiser={"ema": 0.0})
    losses(begin(tmp_path, plain, target, corpus))
    run = begin(tmp_path, settings(plain, optimiser={"ema": 0.999}), target, corpus)
    now = [p.detach().clone() for p in run.trainer.model.parameters()]
    averaged = run.trainer.with_average(
        lambda: [p.detach().clone() for p in run.trainer.model.parameters()]
    )
    assert all(torch.equal(a, b) for a, b in zip(now, averaged, strict=True))


def test_a_killed_process_goes_on_as_if_nothing_had_been(
    tmp_path: Path, recipe: Recipe, target: Target, corpus: Corpus
) -> None:
    """SIGKILL in the middle of a step, then the same command again."""
    recipe = settings(recipe, run={"steps": 12, "save_seconds": 0.0})
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    write_shard(tmp_path / "corpus.npz", corpus.samples, {})
    whole = losses(begin(tmp_path / "whole", recipe, target, corpus))

    command = [
        sys.executable, "-c", "from dartree_core.cli.train import app; app()",
        "drafter", str(tmp_path / "corpus.npz"),
        "--out", str(tmp_path / "killed"), "--recipe", str(tmp_path / "recipe.toml"),
        "--target", str(CHECKPOINTS / "target_tied"), "--device", "cpu",
    ]  # fmt: skip
    curve = tmp_path / "killed" / "training" / "curve.jsonl"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as process:
        while len(CurveLog.read(curve)) < 3:
            assert process.poll() is None, process.stderr and process.stderr.read().decode()
        process.kill()
    subprocess.run(command, env=environment, check=True, capture_output=True)
    assert [entry["loss"] for entry in CurveLog.read(curve)] == whole


def test_processes_share_a_step(
    tmp_path: Path, recipe: Recipe, target: Target, corpus: Corpus
) -> None:
    recipe = settings(recipe, run={"steps": 3})
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    (tmp_path / "cli.py").write_text("from dartree_core.cli.train import app; app()")
    write_shard(tmp_path / "corpus.npz", corpus.samples, {})
    alone = losses(begin(tmp_path / "alone", recipe, target, corpus))
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        str(tmp_path / "cli.py"), "drafter", str(tmp_path / "corpus.npz"),
        "--out", str(tmp_path / "shared"), "--recipe", str(tmp_path / "recipe.toml"),
        "--target", str(CHECKPOINTS / "target_tied"), "--device", "cpu",
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()}
    subprocess.run(command, env=environment, check=True, capture_output=True)
    curve = CurveLog.read(tmp_path / "shared" / "training" / "curve.jsonl")
    assert [entry["loss"] for entry in curve] == pytest.approx(alone, rel=1e-4)


def test_a_run_can_be_extended(
    tmp_path: Path, recipe: Recipe, target: Target, corpus: Corpus
) -> None:
    hold = {"anneal": 1e-9, "ema": 0.0}
    loss = {"head_ramp": 0.0}
    short = settings(recipe, run={"steps": 3}, optimiser=hold, loss=loss)
    long = settings(recipe, run={"steps": 6}, optimiser=hold, loss=loss)
    begun = losses(begin(tmp_path / "a", short, target, corpus))
    assert begun + losses(begin(tmp_path / "a", long, target, corpus)) == losses(
        begin(tmp_path / "b", long, target, corpus)
    )


def test_another_corpus_or_drafter_is_refused(
    tmp_path: Path, recipe: Recipe, target: Target, corpus: Corpus, held_out: Corpus
) -> None:
    recipe = settings(recipe, run={"steps": 1})
    losses(begin(tmp_path, recipe, target, corpus))
    with pytest.raises(ConfigError, match="another corpus"):
        begin(tmp_path, recipe, target, held_out)
    with pytest.raises(ConfigError, match=r"another \[drafter\] section"):
        begin(tmp_path, settings(recipe, drafter={"head_embed": 8}), target, corpus)
    (tmp_path / "training" / "state.safetensors").write_bytes(b"cut")
    with pytest.raises(CheckpointError, match="damaged"):
        begin(tmp_path, recipe, target, corpus)


def test_a_foreign_drafter_is_not_overwritten(
    trained: tuple[Path, dict[Method, float]],
    tmp_path: Path,
    recipe: Recipe,
    target: Target,
    corpus: Corpus,
) -> None:
    out, _ = trained
    (tmp_path / "model.safetensors").write_bytes((out / "model.safetensors").read_bytes())
    with pytest.raises(ConfigError, match="already holds a drafter"):
        begin(tmp_path, recipe, target, corpus)


def test_training_goes_on_from_a_drafter(
    trained: tuple[Path, dict[Method, float]],
    tmp_path: Path,
    recipe: Recipe,
    target: Target,
    corpus: Corpus,
    held_out: Corpus,
) -> None:
    out, _ = trained
    run = begin(tmp_path, recipe, target, corpus, start=Start.parse(str(out)))
    run.trainer.save()
    kept = [acceptance(folder, target, held_out, "domino") for folder in (out, tmp_path)]
    assert kept[1] == pytest.approx(kept[0], abs=0.1)
    other = settings(recipe, drafter={"head_state": 16})
    with pytest.raises(ConfigError, match="other shapes"):
        begin(tmp_path / "x", other, target, corpus, start=Start.parse(str(out)))


@pytest.mark.parametrize("size", [480, 0], ids=["larger", "whole"])
def test_a_larger_vocabulary_keeps_what_was_learnt(
    size: int,
    trained: tuple[Path, dict[Method, float]],
    tmp_path: Path,
    recipe: Recipe,
    target: Target,
    corpus: Corpus,
    held_out: Corpus,
) -> None:
    out, _ = trained
    wider = settings(recipe, drafter={"draft_vocab": size})
    run = begin(tmp_path, wider, target, corpus, start=Start.parse(str(out)))
    run.trainer.save()
    old, new = read_checkpoint(out), read_checkpoint(tmp_path)
    assert old.vocab_ids is not None
    if size:
        assert new.vocab_ids is not None
        assert set(old.vocab_ids.tolist()) < set(new.vocab_ids.tolist())
        assert len(new.vocab_ids) == size
        rows = torch.searchsorted(new.vocab_ids, old.vocab_ids)
    else:
        assert new.vocab_ids is None
        rows = old.vocab_ids.long()
    before, after = (c.head.state_dict()["embed_proj.2.weight"] for c in (old, new))
    assert torch.equal(after[rows], before)
    # What was never drafted stays where it is among the others, wherever the head moved them.
    added = torch.ones(len(after), dtype=torch.bool)
    added[rows] = False
    torch.testing.assert_close(after[added], before.mean(dim=0).expand(int(added.sum()), -1))
    kept = [acceptance(folder, target, held_out, "dartree") for folder in (out, tmp_path)]
    assert kept[1] >= kept[0] - 0.1


def test_a_smaller_vocabulary_is_refused(
    trained: tuple[Path, dict[Method, float]],
    tmp_path: Path,
    recipe: Recipe,
    target: Target,
    corpus: Corpus,
) -> None:
    smaller = settings(recipe, drafter={"draft_vocab": 256})
    with pytest.raises(ConfigError, match="drafts 384 tokens") as refused:
        begin(tmp_path, smaller, target, corpus, start=Start.parse(str(trained[0])))
    assert "384 or more" in str(refused.value)


def test_features_in_bfloat16_take_the_lean_path(
    tmp_path: Path, recipe: Recipe, target: Target, corpus: Corpus, held_out: Corpus
) -> None:
    halves = settings(recipe, features={"precision": "bfloat16"}, run={"steps": 6})
    folder = CHECKPOINTS / "target_tied"

    def start(name: str) -> Run:
        own = load_target(folder, device=torch.device("cpu"), dtype=torch.float32)
        run = begin(tmp_path / name, halves, own, corpus, held_out=held_out)
        # The run took the weights over.
        assert own.layers[0].self_attn.q_proj.weight.numel() == 0
        return run

    run = start("unbroken")
    whole = losses(run)
    half = start("resumed")
    first = losses(half, 3)
    half.trainer.save()
    assert first + losses(start("resumed")) == whole
    exact = FeatureSource(target, corpus, run.trainer.source.taps, torch.float32)
    for index in (0, 7):
        ours, theirs = run.trainer.source[index], exact[index]
        assert not ours.context.is_inference()
        torch.testing.assert_close(ours.context, theirs.context, rtol=0.05, atol=0.05)
        torch.testing.assert_close(ours.final, theirs.final, rtol=0.05, atol=0.1)


def test_shifting_labels_keeps_later_slots(
    trained: tuple[Path, dict[Method, float]],
    tmp_path: Path,
    recipe: Recipe,
    target: Target,
    corpus: Corpus,
    held_out: Corpus,
) -> None:
    """Turned queries see the context as the neighbouring rows did, so slots 2.. stay right."""
    out, _ = trained
    shifted = settings(recipe, drafter={"shift_label": True})
    runs = [
        begin(tmp_path / name, r, target, corpus, held_out=held_out, start=Start.parse(str(out)))
        for name, r in (("same", recipe), ("shifted", shifted))
    ]
    same, moved = (run.trainer.measure() for run in runs)
    assert same is not None
    assert moved is not None
    assert sum(moved.corrected[1:5]) > 0.6 * sum(same.corrected[1:5])


def test_a_signal_ends_the_run_after_its_step(
    tmp_path: Path, recipe: Recipe, target: Target, corpus: Corpus
) -> None:
    run = begin(tmp_path, recipe, target, corpus)
    reports = []
    for report in run.trainer.steps():
        reports.append(report)
        if report.step == 3:
            run.trainer.stop()
    assert [r.step for r in reports] == [1, 2, 3, 4]
    assert begin(tmp_path, recipe, target, corpus).trainer.counters.step == 4


def test_an_unusable_corpus_is_refused(tmp_path: Path, recipe: Recipe, target: Target) -> None:
    sample = Sample(torch.arange(5, 9).numpy(), 3, 0.0, "")
    with pytest.raises(Exception, match="no answer of two tokens"):
        begin(tmp_path, recipe, target, Corpus((sample,)))


@pytest.mark.parametrize(
    "loss",
    [
        {"soft": 0.0, "sample_slots": False},
        {"soft": 0.5, "candidates": 16},
    ],
    ids=["hard-weighted", "mixed-candidates"],
)
def test_every_kind_of_loss_learns(
    loss: dict[str, Any],
    tmp_path: Path,
    recipe: Recipe,
    target: Target,
    corpus: Corpus,
    held_out: Corpus,
) -> None:
    short = settings(recipe, loss=loss, run={"steps": 30})
    run = begin(tmp_path, short, target, corpus, held_out=held_out)
    losses(run)
    assert acceptance(tmp_path, target, held_out, "domino") > 1.6


def test_a_drafter_without_a_head_trains(
    tmp_path: Path, recipe: Recipe, target: Target, corpus: Corpus, held_out: Corpus
) -> None:
    plain = settings(recipe, drafter={"head": "none", "draft_vocab": 0}, run={"steps": 30})
    losses(begin(tmp_path, plain, target, corpus, held_out=held_out))
    assert acceptance(tmp_path, target, held_out, "dartree") > 1.6


def test_random_first_weights_learn_too(
    tmp_path: Path, recipe: Recipe, target: Target, corpus: Corpus, held_out: Corpus
) -> None:
    short = settings(recipe, run={"steps": 60}, loss={"head_ramp": 0.0})
    found = losses(begin(tmp_path, short, target, corpus, start=Start("random")))
    assert sum(found[-5:]) < 0.8 * sum(found[:5])


def _weights(state: Path) -> dict[str, list[float]]:
    from safetensors.torch import load_file

    return {name: tensor.flatten().tolist() for name, tensor in load_file(state).items()}

"""Opening, resuming and ending runs: what is refused, what is noted, what is made up for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dartree_core.errors import ConfigError
from dartree_core.models import Target
from dartree_core.train.corpus import Corpus, CorpusError, Sample
from dartree_core.train.drive import drive
from dartree_core.train.features import FeatureSource, describe_target
from dartree_core.train.measure import measure
from dartree_core.train.recipe import Recipe
from tests.core.train.conftest import settings
from tests.core.train.test_training import begin, losses


def test_a_drafter_lost_to_a_kill_is_written_again(
    tmp_path: Path, recipe: Recipe, target: Target, corpus: Corpus
) -> None:
    short = settings(recipe, run={"steps": 2})
    losses(begin(tmp_path, short, target, corpus))
    weights, card = tmp_path / "model.safetensors", tmp_path / "README.md"
    made = weights.read_bytes()
    weights.unlink()
    card.write_text("of an earlier step")
    assert drive(begin(tmp_path, short, target, corpus), short, tmp_path)
    assert weights.read_bytes() == made
    assert "in 2 steps" in card.read_text()


def test_a_run_that_diverges_keeps_its_last_good_state(
    tmp_path: Path, recipe: Recipe, target: Target, corpus: Corpus
) -> None:
    run = begin(tmp_path, settings(recipe, run={"save_seconds": 0.0}), target, corpus)
    steps = run.trainer.steps()
    next(steps)
    with torch.no_grad():
        run.trainer.model.backbone.fc.weight[0, 0] = torch.inf
    with pytest.raises(ConfigError, match="gradient of step 2 is not finite"):
        next(steps)
    again = begin(tmp_path, recipe, target, corpus).trainer
    assert again.counters.step == 1
    assert all(p.isfinite().all() for p in again.model.parameters())


def test_measurements_are_spread_over_the_held_out_answers(
    tmp_path: Path, recipe: Recipe, target: Target, corpus: Corpus, held_out: Corpus
) -> None:
    few = settings(recipe, run={"eval_sequences": 3})
    trainer = begin(tmp_path, few, target, corpus, held_out=held_out).trainer
    source = FeatureSource(target, held_out, trainer.source.taps, torch.float32)
    wanted = measure(trainer.model, trainer.tables, source, [0, 4, 8], torch.float32)
    assert trainer.measure() == wanted


def test_answers_of_another_vocabulary_are_refused(
    tmp_path: Path, recipe: Recipe, target: Target, corpus: Corpus
) -> None:
    sample = Sample(torch.tensor([3, 512, 5, 6, 7]).numpy(), 2, 0.0, "")
    foreign = Corpus((*corpus.samples, sample))
    with pytest.raises(CorpusError, match="The corpus holds token 512, but the target has 512"):
        begin(tmp_path, recipe, target, foreign)
    with pytest.raises(CorpusError, match="The held-out corpus holds token 512"):
        begin(tmp_path, recipe, target, corpus, held_out=foreign)


def test_answers_of_other_weights_are_noted(
    tmp_path: Path, recipe: Recipe, target: Target, corpus: Corpus, held_out: Corpus
) -> None:
    def by(label: str, digest: str, of: Corpus) -> Corpus:
        return Corpus(of.samples, ({"target": label, "target_digest": digest}, {}))

    ours = by("same", describe_target(target), corpus)
    assert begin(tmp_path / "a", recipe, target, ours, held_out=held_out).notes == ()
    theirs = by("other/model", "0" * 64, held_out)
    (note,) = begin(tmp_path / "b", recipe, target, ours, held_out=theirs).notes
    assert note.startswith("The held-out corpus was not made by these weights")
    assert "but by other/model" in note

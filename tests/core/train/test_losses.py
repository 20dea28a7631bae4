from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from dartree_core.draft.checkpoint import DraftCheckpoint
from dartree_core.draft.drafter import Drafter
from dartree_core.draft.spec import DraftSpec
from dartree_core.draft.vocabulary import DraftVocabulary
from dartree_core.models import Target
from dartree_core.train.blocks import draw_anchors, make_blocks
from dartree_core.train.corpus import Corpus, Sample
from dartree_core.train.design import draft_vocabulary, drafter_config
from dartree_core.train.features import FeatureSource
from dartree_core.train.initialise import Start, initialise, input_scales, probe_features
from dartree_core.train.losses import BlockLoss, block_loss, cross_entropy, head_share, slot_weights
from dartree_core.train.model import Scales, Tables, TrainableDrafter
from dartree_core.train.recipe import LossRecipe, Recipe
from dartree_core.train.stream import keyed_generator


class Bench:
    """A drafter with a head that corrects, and one sequence's blocks."""

    def __init__(self, recipe: Recipe, target: Target, corpus: Corpus, sample: Sample) -> None:
        config = drafter_config(recipe.drafter, target, 511)
        self.spec = DraftSpec.from_config(config)
        ids = draft_vocabulary(corpus, recipe.drafter.draft_vocab, target)
        vocabulary = DraftVocabulary.from_checkpoint(
            ids, self.spec.draft_vocab_size, target.vocab_size
        )
        source = FeatureSource(target, corpus, self.spec.target_layer_ids, torch.float32)
        probe = probe_features(source)
        self.tables = Tables(target, vocabulary, torch.float32)
        self.model = TrainableDrafter(self.spec, input_scales(probe, target))
        initialise(self.model, Start("target"), probe, target, ids, 0)
        generator = keyed_generator(7)
        with torch.no_grad():
            last = self.model.get_parameter("head.embed_proj.2.weight")
            last.copy_(torch.randn(last.shape, generator=generator) * 0.3)
        self.features = source.compute(sample)
        anchors = draw_anchors(sample, 16, generator)
        self.blocks = make_blocks(sample, anchors, self.spec)

    def loss(self, recipe: LossRecipe, share: float = 0.5, seed: int = 0) -> BlockLoss:
        return block_loss(
            self.model,
            self.tables,
            self.features.context,
            self.features.final,
            self.blocks,
            recipe,
            share,
            keyed_generator(seed),
        )


@pytest.fixture(scope="module")
def bench(recipe: Recipe, target: Target, corpus: Corpus) -> Bench:
    return Bench(recipe, target, corpus, corpus.samples[0])


def unit_scales(bench: Bench) -> Scales:
    return Scales(torch.ones(bench.features.context.shape[1]), 1.0)


WEIGHED = LossRecipe(sample_slots=False)


def test_slots_weigh_less_the_later_they_are() -> None:
    weights = slot_weights(3, 2.0)
    assert weights[0] == 1.0
    assert (weights[1] / weights[2]).item() == pytest.approx(np.exp(0.5))


def test_the_heads_share_grows_to_its_end() -> None:
    recipe = LossRecipe(head_start=0.1, head_end=0.7, head_ramp=0.4)
    shares = [head_share(recipe, p) for p in (0.0, 0.2, 0.4, 1.0)]
    assert shares == pytest.approx([0.1, 0.4, 0.7, 0.7])
    assert head_share(LossRecipe(head_ramp=0.0), 0.0) == 0.7


def test_sampling_slots_expects_what_weighing_them_gives(bench: Bench) -> None:
    with torch.no_grad():
        weighed = bench.loss(WEIGHED).terms
        # A ratio of sums, so the mean over draws agrees only up to a small bias.
        drawn = torch.stack([bench.loss(LossRecipe(), seed=s).terms for s in range(200)])
    error = drawn.std(0) / 200**0.5
    assert ((drawn.mean(0) - weighed).abs() < 4 * error + 0.01 * weighed).all()


def test_all_candidates_are_no_restriction(bench: Bench) -> None:
    with torch.no_grad():
        every = dataclasses.replace(WEIGHED, candidates=10_000)
        torch.testing.assert_close(bench.loss(every).terms, bench.loss(WEIGHED).terms)
        few = bench.loss(dataclasses.replace(WEIGHED, candidates=4)).terms
    assert few[1] < bench.loss(WEIGHED).terms[1]


def test_terms_add_up_to_the_objective(bench: Bench) -> None:
    recipe = dataclasses.replace(WEIGHED, feature_weight=0.25)
    found = bench.loss(recipe, share=0.3)
    base, corrected, feature = found.terms.tolist()
    assert found.total.item() == pytest.approx(0.7 * base + 0.3 * corrected + 0.25 * feature)
    assert bench.loss(recipe, share=0.0).total.item() == pytest.approx(base + 0.25 * feature)


def test_a_perfect_drafter_has_the_targets_entropy() -> None:
    """Cross-entropy against a distribution is least, and its entropy, at that distribution."""
    logits = torch.randn(5, 20, generator=keyed_generator(1))
    teacher = torch.softmax(logits, -1)
    truth = torch.zeros(5, dtype=torch.int64)
    entropy = -(teacher * teacher.log()).sum(-1)
    torch.testing.assert_close(cross_entropy(logits, teacher, truth, 1.0), entropy)
    assert (cross_entropy(logits * 0.5, teacher, truth, 1.0) > entropy).all()
    half = cross_entropy(logits, teacher, truth, 0.5)
    hard = cross_entropy(logits, None, truth, 0.0)
    torch.testing.assert_close(half, 0.5 * entropy + 0.5 * hard)


def test_nothing_is_scored_behind_a_token_outside_the_vocabulary(
    recipe: Recipe, target: Target, corpus: Corpus
) -> None:
    probe = Bench(recipe, target, corpus, corpus.samples[0])
    outside = int((probe.tables.rows < 0).nonzero()[0, 0])
    sample = corpus.samples[0]
    tokens = sample.tokens.copy()
    tokens[sample.answer + 3] = outside
    cut = Bench(recipe, target, corpus, Sample(tokens, sample.answer, 0.0, ""))
    cut.blocks = make_blocks(
        Sample(tokens, sample.answer, 0.0, ""), torch.tensor([sample.answer]), cut.spec
    )
    scored = cut.loss(WEIGHED).counts[0].tolist()
    assert scored == [1.0, 1.0, *[0.0] * (cut.spec.num_slots() - 2)]


def test_an_answer_that_teaches_nothing_does_no_harm(
    recipe: Recipe, target: Target, corpus: Corpus
) -> None:
    probe = Bench(recipe, target, corpus, corpus.samples[0])
    outside = int((probe.tables.rows < 0).nonzero()[0, 0])
    tokens = np.array([5, 6, 7, *[outside] * 6], dtype=np.int64)
    bench = Bench(recipe, target, corpus, Sample(tokens, 3, 0.0, ""))
    found = bench.loss(LossRecipe())
    torch.autograd.backward(found.total)
    assert found.total.item() == 0.0
    gradients = [p.grad for p in bench.model.parameters() if p.grad is not None]
    assert all(torch.isfinite(g).all() for g in gradients)


def test_scales_fold_into_the_exported_weights(bench: Bench) -> None:
    """The checkpoint's weights, on raw inputs, compute what training computes on scaled ones."""
    folded = bench.model.folded()
    plain = TrainableDrafter(bench.spec, unit_scales(bench))
    plain.fold_in(folded)
    with torch.no_grad():
        ours, theirs = (
            (
                m.hidden(bench.features.context, bench.blocks, bench.tables),
                m.states(bench.blocks, bench.tables),
            )
            for m in (bench.model, plain)
        )
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-4, atol=1e-4)


def test_training_sees_what_drafting_will_see(bench: Bench, target: Target, corpus: Corpus) -> None:
    """Many masked blocks in one pass give what the drafter gives one by one."""
    model = bench.model
    plain = TrainableDrafter(bench.spec, unit_scales(bench))
    plain.fold_in(model.folded())
    checkpoint = DraftCheckpoint(
        bench.spec, plain.backbone, plain.head, bench.tables.vocabulary.ids, Path("x")
    )
    drafter = Drafter(checkpoint, target)
    context = bench.features.context.float()
    with torch.no_grad():
        together = model.hidden(bench.features.context, bench.blocks, bench.tables)
    for row in range(0, int(bench.blocks.valid.any(1).sum()), 5):
        anchor = int(bench.blocks.anchors[row])
        cache = drafter.new_cache()
        drafter.extend(context[:anchor], cache)
        alone = drafter.draft(bench.blocks.tokens[row, :1], cache)
        torch.testing.assert_close(together[row], alone.hidden, rtol=1e-3, atol=1e-3)

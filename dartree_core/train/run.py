"""Putting a run together: recipe, target, corpus and output directory become a `Trainer`."""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from dartree_core import __version__
from dartree_core.draft.spec import DraftSpec
from dartree_core.draft.vocabulary import DraftVocabulary
from dartree_core.errors import ConfigError
from dartree_core.models.target import Target
from dartree_core.parallel.world import World
from dartree_core.train.card import Provenance, model_card
from dartree_core.train.corpus import Corpus, CorpusError
from dartree_core.train.curve import CurveLog
from dartree_core.train.design import draft_vocabulary, drafter_config, pick_mask_token
from dartree_core.train.export import replace_text, write_drafter
from dartree_core.train.features import FeatureSource, describe_target
from dartree_core.train.initialise import Start, initialise, input_scales, probe_features
from dartree_core.train.match import foreign_note, refuse_foreign_ids
from dartree_core.train.measure import Accuracy
from dartree_core.train.model import Tables, TrainableDrafter
from dartree_core.train.parallel import agreed, anyone
from dartree_core.train.precision import resolve_precision
from dartree_core.train.quick import in_halves
from dartree_core.train.recipe import Recipe
from dartree_core.train.state import Counters, read_counters, read_identity
from dartree_core.train.trainer import StepReport, Trainer

WORK = "training"
"""Folder, inside a drafter's, that holds what only a resumed run needs."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a run is made from.

    Attributes:
        target: The model drafted for.
        corpus: Its answers.
        held_out: Answers kept apart for measuring, or None.
        out: The drafter's directory.
        start: Where first weights come from.
        special_tokens: Ids of the tokenizer's special tokens, candidates for the mask.
        cache: Directory for hidden states, or None.
        licence: SPDX id for the card, or "".
    """

    target: Target
    corpus: Corpus
    held_out: Corpus | None
    out: Path
    start: Start
    special_tokens: tuple[int, ...] = ()
    cache: Path | None = None
    licence: str = ""


@dataclass(slots=True)
class Run:
    """A run that is ready to go on.

    Attributes:
        trainer: The loop.
        curve: Its learning curve.
        resumed: True when an earlier state was found.
        notes: What the user should know about the corpora, one sentence each.
    """

    trainer: Trainer
    curve: CurveLog
    resumed: bool
    notes: tuple[str, ...] = ()

    def measure_if_missed(self) -> Accuracy | None:
        """Measure where a run stood when it was killed, if that was during its measurement."""
        step = self.trainer.counters.step
        entries = CurveLog.read(self.curve.path) if self.trainer.world.leads else []
        known = any("eval" in entry and entry["step"] == step for entry in entries)
        if self.trainer.source.joint:
            known = anyone(known, self.trainer.source.target.device)
        return None if known or not step else self.measure_if_due(step)

    def measure_if_due(self, step: int) -> Accuracy | None:
        """Measure on held-out answers every `run.eval_steps` steps and at the end."""
        recipe = self.trainer.recipe.run
        due = recipe.eval_steps and (step % recipe.eval_steps == 0 or step == recipe.steps)
        leads = self.trainer.world.leads
        if not due or not (leads or self.trainer.source.joint):
            return None
        accuracy = self.trainer.measure()
        if accuracy is not None and leads:
            counters = self.trainer.counters
            self.curve.append({"step": step, "blocks": counters.blocks, "eval": accuracy.to_dict()})
            if step == recipe.steps:
                # The card should tell of this measurement too.
                self.trainer.save()
        return accuracy


def work_files(out: Path) -> tuple[Path, Path, Path]:
    """State, curve and recipe of the run whose drafter is in `out`."""
    work = out / WORK
    return work / "state.safetensors", work / "curve.jsonl", work / "recipe.toml"


@dataclass(slots=True)
class _Recorder:
    """What a run writes besides its state: the learning curve, and the drafter with its card."""

    out: Path
    recipe: Recipe
    config: dict[str, Any]
    vocab_ids: Tensor | None
    provenance: Provenance
    model: TrainableDrafter
    curve: CurveLog

    def record(self, report: StepReport) -> None:
        """Add a step to the curve."""
        self.curve.append(
            {
                "step": report.step,
                "blocks": report.blocks,
                "loss": report.loss,
                "base": report.base,
                "corrected": report.corrected,
                "feature": report.feature,
                "seconds": round(report.elapsed, 2),
            }
        )

    def export(self, counters: Counters) -> None:
        """Write the drafter as it stands."""
        measured = [e for e in CurveLog.read(self.curve.path) if "eval" in e]
        card = model_card(
            self.recipe,
            self.config,
            self.provenance,
            measured,
            blocks=counters.blocks,
            step=counters.step,
        )
        write_drafter(self.out, self.config, self.model.folded(), self.vocab_ids, card)


def open_run(recipe: Recipe, inputs: Inputs, world: World) -> Run:
    """Begin a run, or go on with the one in `inputs.out`.

    Raises:
        ConfigError: The directory holds a run with other shapes, data or target, or something
            that is no run; or the processes would not train the same.
        CorpusError: The corpus holds no usable answer, or is of a target with other tokens.
        CheckpointError: A drafter to start from, or a state, is unusable.
    """
    target = inputs.target
    state_file, curve_file, recipe_file = work_files(inputs.out)
    corpus = _usable(inputs.corpus, recipe, target, "The corpus")
    held_out = None
    if inputs.held_out:
        held_out = _usable(inputs.held_out, recipe, target, "The held-out corpus")
    config, vocab_ids = _design(recipe, inputs, corpus)
    spec = DraftSpec.from_config(config)
    identity = {
        "corpus": corpus.fingerprint(),
        "target": describe_target(target),
        "drafter": json.dumps(config, sort_keys=True),
        "vocabulary": _digest(vocab_ids),
        "seed": str(recipe.run.seed),
    }
    resumed = state_file.exists()
    done = read_counters(state_file).step if resumed else 0
    if not agreed(world, json.dumps([done, recipe.to_dict(), identity]), target.device):
        raise ConfigError(
            f"The processes of this run differ: in settings, in data, or in what {inputs.out} "
            "holds for them.",
            "Start all of them with the same command, and an --out that all machines share.",
        )
    if resumed:
        _same_run(identity, read_identity(state_file), inputs.out)
    elif world.leads:
        _fresh_directory(inputs.out)
    source = _features(recipe, inputs, corpus, spec)
    probe = probe_features(source)
    model = TrainableDrafter(spec, input_scales(probe, target)).to(target.device)
    if not resumed:
        initialise(model, inputs.start, probe, target, vocab_ids, recipe.run.seed)
    vocabulary = DraftVocabulary.from_checkpoint(
        None if vocab_ids is None else vocab_ids.to(target.device),
        spec.draft_vocab_size,
        target.vocab_size,
    )
    measured_on = _features(recipe, inputs, held_out, spec) if held_out else None
    dtype = resolve_precision(recipe.run.precision, target.device)
    tables = Tables(target, vocabulary, dtype)
    _hasten(target, source, measured_on)
    recorder = _Recorder(
        inputs.out,
        recipe,
        config,
        vocab_ids,
        _provenance(recipe, inputs, corpus, held_out),
        model,
        CurveLog(curve_file, done, writes=world.leads),
    )
    trainer = Trainer(
        recipe,
        model,
        tables,
        source,
        state_file=state_file,
        world=world,
        dtype=dtype,
        identity=identity,
        held_out=measured_on,
        record=recorder.record,
        export=recorder.export,
    )
    if world.leads:
        recipe_file.parent.mkdir(parents=True, exist_ok=True)
        replace_text(recipe_file, recipe.to_toml())
    notes = [
        foreign_note(answers, identity["target"], what)
        for answers, what in ((corpus, "The corpus"), (held_out, "The held-out corpus"))
        if answers is not None
    ]
    return Run(trainer, recorder.curve, resumed, tuple(note for note in notes if note))


def _features(recipe: Recipe, inputs: Inputs, corpus: Corpus, spec: DraftSpec) -> FeatureSource:
    return FeatureSource(
        inputs.target,
        corpus,
        spec.target_layer_ids,
        resolve_precision(recipe.features.precision, inputs.target.device),
        cache=inputs.cache,
        limit=int(recipe.features.cache_gb * 1e9),
    )


def _hasten(target: Target, *sources: FeatureSource | None) -> None:
    """From here on the target only makes features: let it do so in its quickest form."""
    wanting = [source for source in sources if source is not None]
    if any(source.dtype != torch.bfloat16 for source in wanting):
        return
    quick = in_halves(target)
    if quick is not None:
        for source in wanting:
            source.hasten(quick)


def _digest(ids: Tensor | None) -> str:
    return "all" if ids is None else hashlib.sha256(ids.numpy().tobytes()).hexdigest()


def _usable(corpus: Corpus, recipe: Recipe, target: Target, what: str) -> Corpus:
    refuse_foreign_ids(corpus, target, what)
    usable = corpus.cut(recipe.data.max_length).usable()
    if not len(usable):
        raise CorpusError(
            f"{what} holds no answer of two tokens or more within "
            f"data.max_length={recipe.data.max_length}.",
            "Make one with `dartree train corpus`, or raise data.max_length.",
        )
    return usable


def _design(recipe: Recipe, inputs: Inputs, corpus: Corpus) -> tuple[dict[str, Any], Tensor | None]:
    """`config.json` and the drafter's vocabulary; a drafter to go on from keeps its own."""
    mask = recipe.drafter.mask_token_id
    if mask < 0:
        known = inputs.start.mask_token_id
        special = list(inputs.special_tokens)
        mask = pick_mask_token(corpus, inputs.target, special) if known is None else known
    config = drafter_config(recipe.drafter, inputs.target, mask)
    if inputs.start.checkpoint is None:
        return config, draft_vocabulary(corpus, recipe.drafter.draft_vocab, inputs.target)
    rows = inputs.start.vocab_ids
    size = inputs.start.checkpoint.spec.draft_vocab_size
    wanted = config.get("draft_vocab_size", config["vocab_size"])
    if wanted < size or (rows is None and wanted != size):
        raise ConfigError(
            f"The drafter in {inputs.start.folder} drafts {size} tokens, the recipe "
            f"{recipe.drafter.draft_vocab or 'all'}.",
            f"Set drafter.draft_vocab to {size}{'' if rows is None else ' or more'}.",
        )
    if wanted == size:
        return config, rows
    return config, draft_vocabulary(corpus, recipe.drafter.draft_vocab, inputs.target, rows)


def _same_run(ours: dict[str, str], theirs: dict[str, str], out: Path) -> None:
    names = {
        "corpus": "another corpus",
        "target": "another target",
        "drafter": "another [drafter] section",
        "vocabulary": "another draft vocabulary (see --init)",
        "seed": "another seed",
    }
    differing = [names[k] for k in names if ours[k] != theirs.get(k)]
    if differing:
        raise ConfigError(
            f"The run in {out} was begun with {' and '.join(differing)}.",
            "Give what it was begun with, or another --out; to train on from its weights use "
            f"--init {out} there.",
        )


def _fresh_directory(out: Path) -> None:
    if (out / "model.safetensors").exists():
        raise ConfigError(
            f"{out} already holds a drafter that is no unfinished run.",
            f"Choose another --out; to train on from it use --init {out}.",
        )


def _provenance(
    recipe: Recipe, inputs: Inputs, corpus: Corpus, held_out: Corpus | None
) -> Provenance:
    return Provenance(
        target=inputs.target.label,
        target_revision=inputs.target.revision,
        licence=inputs.licence,
        corpus=corpus.sources(),
        generated_tokens=corpus.num_generated,
        held_out=min(len(held_out), recipe.run.eval_sequences) if held_out else 0,
        initial=inputs.start.describe(),
        software={
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "dartree": __version__,
        },
    )

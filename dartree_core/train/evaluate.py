"""`train eval`: what a drafter is worth, teacher-forced and in real decoding."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch

from dartree_core.config import CHAINS, DecodeConfig, Method, SamplingConfig, TreeConfig
from dartree_core.draft.checkpoint import DraftCheckpoint
from dartree_core.draft.drafter import Drafter
from dartree_core.draft.tables import output_table, own_embedding
from dartree_core.engine import Decoder
from dartree_core.events import TurnFinished
from dartree_core.metrics import RunningMetrics
from dartree_core.train.corpus import Corpus
from dartree_core.train.features import FeatureSource
from dartree_core.train.forced import forced_acceptance
from dartree_core.train.match import refuse_foreign_ids
from dartree_core.train.measure import Accuracy, measure
from dartree_core.train.model import Scales, Tables, TrainableDrafter
from dartree_core.train.prompts import PromptRow
from dartree_core.train.recipe import HeadChoice

_CACHE = 4_000_000_000
"""Bytes of hidden states kept while several methods are measured on the same answers."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A method with a budget.

    Attributes:
        method: Drafting method.
        budget: Nodes verified in a round; ignored by chains.
    """

    method: Method
    budget: int

    @property
    def label(self) -> str:
        """As shown in tables."""
        return self.method if self.method in CHAINS else f"{self.method} B={self.budget}"


def variants(methods: Sequence[Method], budgets: Sequence[int]) -> list[Variant]:
    """Every method at every budget; chains, which have none, once."""
    found = []
    for method in methods:
        used = budgets[:1] if method in CHAINS else budgets
        found += [Variant(method, budget) for budget in used]
    return found


def check(
    wanted: Sequence[Variant],
    temperatures: Sequence[float],
    depth_bonus: float,
    max_new_tokens: int,
) -> None:
    """Make every configuration once, so that a wrong setting is told before models load.

    Raises:
        ConfigError: A setting is out of range.
    """
    for variant in wanted:
        for temperature in temperatures:
            _config(variant, temperature, depth_bonus, max_new_tokens, 0)


def _config(
    variant: Variant, temperature: float, depth_bonus: float, max_new_tokens: int, seed: int
) -> DecodeConfig:
    return DecodeConfig(
        method=variant.method,
        tree=TreeConfig(budget=variant.budget, depth_bonus=depth_bonus),
        sampling=SamplingConfig(temperature=temperature, seed=seed),
        max_new_tokens=max_new_tokens,
    )


@dataclass(frozen=True, slots=True)
class Row:
    """Acceptance of one variant on one set.

    Attributes:
        data: Name of the set.
        variant: Label.
        temperature: Of the target.
        rounds: Rounds counted.
        length: Tokens a round, bonus included.
    """

    data: str
    variant: str
    temperature: float
    rounds: int
    length: float


def foreign_part(checkpoint: DraftCheckpoint, drafter: Drafter) -> str:
    """What a drafter has that those trained here do not have, or "".

    With such a part, accuracy per slot would be that of another model: `TrainableDrafter` lacks it.

    Args:
        checkpoint: As read from disk.
        drafter: The same, on its target.
    """
    spec = checkpoint.spec
    found = {
        f"a {spec.head} head": spec.head not in get_args(HeadChoice),
        "a head with biases": any("bias" in name for name in checkpoint.head.state_dict()),
        "layers that look only backwards": any(spec.causal),
        "convolutions": spec.conv_taps > 0,
        "token tables of its own": _own_tables(checkpoint, drafter),
        "scaled embeddings": spec.embedding_scale is not None,
        "scaled or bounded logits": spec.output_multiplier != 1.0 or spec.softcap is not None,
    }
    return next((part for part, there in found.items() if there), "")


def _own_tables(checkpoint: DraftCheckpoint, drafter: Drafter) -> bool:
    """True when it has tables that are no copies of the target's."""
    target = drafter.target
    borrowed = drafter.vocabulary.select(target.output_weight)
    output = output_table(checkpoint.output, borrowed)
    embedding = own_embedding(checkpoint.embedding, target.embedding.weight)
    return embedding is not None or output.data_ptr() != borrowed.data_ptr()


def held_out(
    drafter: Drafter,
    corpus: Corpus,
    wanted: Sequence[Variant],
    depth_bonus: float,
    progress: Callable[[str, int, int], None] = lambda *_: None,
    *,
    per_slot: bool = True,
) -> tuple[Accuracy | None, list[Row]]:
    """Accuracy per slot, and acceptance along the known answers without target passes.

    Args:
        drafter: On a target as transformers loads it.
        corpus: Known answers.
        wanted: Methods to walk them with.
        depth_bonus: Of the trees.
        progress: Hears what is measured.
        per_slot: False leaves the accuracy out; see `foreign_part`.

    Raises:
        CorpusError: The corpus is of a target with another vocabulary.
    """
    refuse_foreign_ids(corpus, drafter.target, "The held-out corpus")
    target = drafter.target
    with tempfile.TemporaryDirectory(prefix="dartree-") as folder:
        source = FeatureSource(
            target, corpus, drafter.taps, target.dtype, cache=Path(folder), limit=_CACHE
        )
        progress("accuracy", 0, len(wanted) + 1)
        accuracy = _accuracy(drafter, source) if per_slot else None
        groups: dict[tuple[str, float], list[int]] = {}
        for i, sample in enumerate(corpus.samples):
            key = (f"{sample.source or 'held-out'} (known)", round(sample.temperature, 4))
            groups.setdefault(key, []).append(i)
        rows = []
        for done, variant in enumerate(wanted, 1):
            progress(variant.label, done, len(wanted) + 1)
            tree = TreeConfig(budget=variant.budget, depth_bonus=depth_bonus)
            for (data, heat), indices in groups.items():
                found = forced_acceptance(drafter, source, indices, variant.method, tree)
                rows.append(Row(data, variant.label, heat, found.rounds, found.length))
        return accuracy, rows


def _accuracy(drafter: Drafter, source: FeatureSource) -> Accuracy:
    target = drafter.target
    width = len(drafter.taps) * target.hidden_size
    unit = Scales(torch.ones(width, device=target.device), 1.0)
    model = TrainableDrafter(drafter.spec, unit).to(target.device)
    model.fold_in({**drafter.backbone.state_dict(), **drafter.head.state_dict()})
    tables = Tables(target, drafter.vocabulary, target.dtype)
    return measure(model, tables, source, range(len(source.corpus)), torch.float32)


def decoded_rows(
    decoder: Decoder,
    prompts: Sequence[PromptRow],
    wanted: Sequence[Variant],
    temperature: float,
    *,
    max_new_tokens: int,
    depth_bonus: float,
    seed: int = 0,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> Iterator[Row]:
    """Acceptance in real decoding, one row per source and variant.

    Conversations of several turns are decoded in full, each reply becoming history.
    """
    sources = list(dict.fromkeys(p.source for p in prompts))
    done, total = 0, len(prompts) * len(wanted)
    for variant in wanted:
        config = _config(variant, temperature, depth_bonus, max_new_tokens, seed)
        for source in sources:
            sums = RunningMetrics()
            for row in (p for p in prompts if p.source == source):
                progress(f"{variant.label}, {source}", done, total)
                _converse(decoder, row, config, sums)
                done += 1
            summary = sums.summary()
            rounds = int(summary["num_spec_steps"])
            length = float(summary["mean_acceptance_length"] or 0)
            yield Row(source, variant.label, temperature, rounds, length)


def _converse(decoder: Decoder, row: PromptRow, config: DecodeConfig, sums: RunningMetrics) -> None:
    session = decoder.session()
    history: list[dict[str, str]] = []
    for turn in row.turns:
        history.append({"role": "user", "content": turn})
        text = ""
        for event in decoder.stream(history, config, session=session, thinking=False):
            sums.update(event)
            if isinstance(event, TurnFinished):
                text = event.text
        history.append({"role": "assistant", "content": text})


def to_json(rows: Sequence[Row], accuracy: Accuracy | None) -> dict[str, Any]:
    """All figures, JSON-ready."""
    return {
        "acceptance": [
            {
                "data": r.data,
                "variant": r.variant,
                "temperature": r.temperature,
                "rounds": r.rounds,
                "acceptance_length": round(r.length, 4),
            }
            for r in rows
        ],
        "held_out_accuracy": accuracy.to_dict() if accuracy else None,
    }

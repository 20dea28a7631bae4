"""The model card that travels with a drafter: what it is for, what it was made of, how it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dartree_core.train.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Provenance:
    """What a card tells beyond the recipe.

    Attributes:
        target: The target's name.
        target_revision: Its revision, or "".
        licence: SPDX id of the weights, or "" to say nothing.
        corpus: Answers by source.
        generated_tokens: Tokens of those answers.
        held_out: Held-out answers measured.
        initial: Where the first weights came from, in words.
        software: Package versions.
    """

    target: str
    target_revision: str
    licence: str
    corpus: Mapping[str, int]
    generated_tokens: int
    held_out: int
    initial: str
    software: Mapping[str, str] = field(default_factory=dict)


def model_card(
    recipe: Recipe,
    config: Mapping[str, Any],
    provenance: Provenance,
    curve: Sequence[Mapping[str, Any]],
    *,
    blocks: int,
    step: int,
) -> str:
    """Markdown with the front matter model hubs read.

    Args:
        recipe: Of the run.
        config: The drafter's `config.json`.
        provenance: The rest.
        curve: Held-out entries of the learning curve, oldest first.
        blocks: Blocks seen in this run.
        step: Steps made.
    """
    inner = config["dflash_config"]
    head = inner.get("projector_type", "none")
    lines = [*_front_matter(provenance), ""]
    lines += [
        f"# Draft model for {provenance.target}",
        "",
        f"A DFlash block drafter with a correction head ({head}) for speculative decoding of "
        f"{provenance.target}. It proposes tokens; the target decides every one of them, so it "
        "changes the speed of an answer and not its content. It serves no other target.",
        "",
        "```",
        'dartree run --target TARGET --draft THIS_FOLDER "Why is the sky blue?"',
        "```",
        "",
        "## Shapes",
        "",
        "| | |",
        "|---|---|",
        f"| block size | {config['block_size']} |",
        f"| layers | {config['num_hidden_layers']} |",
        f"| target layers read | {inner['target_layer_ids']} |",
        f"| mask token | {inner['mask_token_id']} |",
        f"| head width, state | {inner.get('emb_dim', 0)}, {inner.get('gru_hidden_dim', 0)} |",
        f"| labels shifted | {inner['shift_label']} |",
        f"| draft vocabulary | {config.get('draft_vocab_size', config['vocab_size'])} "
        f"of {config['vocab_size']} tokens |",
    ]
    if "draft_vocab_size" in config:
        lines += [
            "",
            "Tokens outside the draft vocabulary are never drafted; the target still emits them. "
            "The tensor `draft_vocab_ids` maps rows to target ids; other loaders of this layout "
            "may not know it.",
        ]
    lines += ["", "## Data", "", *_data(provenance)]
    lines += ["", "## Training", "", *_training(recipe, provenance, blocks, step)]
    if curve:
        lines += ["", "## Held-out accuracy", "", *_curve(curve, provenance)]
    return "\n".join(lines) + "\n"


def _front_matter(provenance: Provenance) -> list[str]:
    lines = ["---"]
    if provenance.licence:
        # Hubs know licences by SPDX ids in lower case.
        lines.append(f"license: {provenance.licence.lower()}")
    return [
        *lines,
        "library_name: dartree",
        "tags:",
        "- speculative-decoding",
        "- dflash",
        "- domino",
        "---",
    ]


def _data(provenance: Provenance) -> list[str]:
    total = sum(provenance.corpus.values())
    lines = [
        f"{total:,} answers by the target itself, {provenance.generated_tokens:,} generated "
        "tokens. Prompts by source:",
        "",
        "| source | answers |",
        "|---|---|",
    ]
    named = sorted(provenance.corpus.items(), key=lambda item: -item[1])
    return lines + [f"| {name or 'unnamed'} | {count:,} |" for name, count in named]


def _training(recipe: Recipe, provenance: Provenance, blocks: int, step: int) -> list[str]:
    software = ", ".join(f"{k} {v}" for k, v in provenance.software.items())
    return [
        f"{blocks:,} blocks in {step:,} steps; first weights: {provenance.initial}. "
        f"{'Exported are the averaged weights. ' if recipe.optimiser.ema else ''}"
        f"Software: {software}.",
        "",
        "The recipe, for `dartree train drafter --recipe FILE`:",
        "",
        "```toml",
        recipe.to_toml().rstrip(),
        "```",
    ]


def _curve(curve: Sequence[Mapping[str, Any]], provenance: Provenance) -> list[str]:
    lines = [
        f"On {provenance.held_out} held-out answers, teacher-forced. Chains count the bonus token.",
        "",
        "| blocks seen | base, slots 1-3 | corrected, slots 1-3 | DFlash chain | Domino chain |",
        "|---|---|---|---|---|",
    ]
    for entry in _thinned(curve):
        figures = entry["eval"]
        base = "/".join(f"{x:.3f}" for x in figures["base"][:3])
        corrected = "/".join(f"{x:.3f}" for x in figures["corrected"][:3])
        lines.append(
            f"| {entry['blocks']:,} | {base} | {corrected} "
            f"| {figures['dflash_acceptance_length']:.2f} "
            f"| {figures['domino_acceptance_length']:.2f} |"
        )
    return lines


def _thinned(curve: Sequence[Mapping[str, Any]], most: int = 20) -> list[Mapping[str, Any]]:
    if len(curve) <= most:
        return list(curve)
    step = (len(curve) - 1) / (most - 1)
    return [curve[round(i * step)] for i in range(most)]

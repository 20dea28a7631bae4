"""Acceptance along answers that are known already: what decoding would give, without its passes.

A seeded answer is the target's choice at every position, whatever drafts, so it is decoded once
and any number of methods walk their trees along it. Features come from one teacher-forced pass, and
blocks from one draft at every token. Rounds are then exactly decoding's, rounding aside, at the
cost of building trees alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from dartree_core.config import DecodeConfig
from dartree_core.draft.along import walk
from dartree_core.draft.builders import BUILDERS
from dartree_core.draft.drafter import BlockDraft, Drafter
from dartree_core.draft.supertree import finish
from dartree_core.engine import Decoder
from dartree_core.engine.coupling import Coupling
from dartree_core.engine.noise import PositionNoise
from dartree_core.engine.prompt import Prompt


@dataclass(frozen=True, slots=True)
class Known:
    """An answer with everything a drafter says about it.

    Attributes:
        tokens: Prompt and answer.
        answer: Where the answer begins.
        blocks: For every answer token that can be the root of a whole round, in order, the
            drafter's block.
    """

    tokens: list[int]
    answer: int
    blocks: list[BlockDraft]


@torch.inference_mode()
def record(decoder: Decoder, prompt: Prompt, config: DecodeConfig) -> Known:
    """Decode plainly, read all features in one pass, and draft from every token.

    Args:
        decoder: With a drafter.
        prompt: Encoded.
        config: Sampling settings, seed and length; the method does not matter.
    """
    drafter, target = decoder.drafter, decoder.target
    assert drafter is not None
    finished = decoder.generate(prompt, config.with_changes(method="ar"))
    tokens = [*prompt.ids, *finished.token_ids]
    ids = torch.tensor(tokens, device=target.device)
    out = target.forward(ids, target.new_cache(), taps=drafter.taps, last_only=True)
    assert out.features is not None
    cache = drafter.new_cache()
    blocks = []
    for at in range(len(prompt.ids), len(tokens) - 1 - drafter.spec.num_slots()):
        drafter.extend(out.features[cache.length : at], cache)
        blocks.append(drafter.draft(ids[at : at + 1], cache))
    return Known(tokens, len(prompt.ids), blocks)


@torch.inference_mode()
def replay(
    known: Known, drafter: Drafter, config: DecodeConfig, coupling: Coupling
) -> Iterator[int]:
    """Draft tokens accepted in every whole round; those that the answer's end cuts are left out.

    Args:
        known: The answer under `config`'s sampling settings and seed.
        drafter: Of the decoder that recorded it.
        config: Method, tree settings (the budget a number, the drafter's own block size) and
            sampling.
        coupling: Learns as it would while decoding.
    """
    sampling = config.sampling
    coupled = config.tree.coupled and not sampling.greedy
    noise = PositionNoise(sampling.seed)
    build, embed = BUILDERS[config.method], drafter.target.embed
    at = known.answer
    while at - known.answer < len(known.blocks):
        block = known.blocks[at - known.answer]
        root = torch.tensor(known.tokens[at : at + 1], device=block.hidden.device)
        if coupled:
            block = coupling.apply(block, drafter.head, config, noise, at)
        slots = block.num_slots
        tree = finish(build(block, drafter.head, root, embed, config.tree, slots))
        accepted = walk(tree, known.tokens[at + 1 : at + 1 + slots])
        if coupled:
            coupling.learn(known.tokens[at : at + accepted + 2])
        yield accepted
        at += accepted + 1

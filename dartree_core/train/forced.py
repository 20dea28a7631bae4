"""Acceptance on known answers, with the real drafter and builders but no target passes.

An answer *is* the target's choice at every position, greedy or sampled, so walking a draft tree
along it gives the acceptance that decoding would have, at the cost of drafting alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from dartree_core.config import Method, TreeConfig
from dartree_core.draft.along import walk
from dartree_core.draft.builders import BUILDERS
from dartree_core.draft.drafter import Drafter
from dartree_core.draft.supertree import finish
from dartree_core.train.corpus import Sample
from dartree_core.train.features import FeatureSource


@dataclass(frozen=True, slots=True)
class ForcedAcceptance:
    """Rounds along known answers.

    Attributes:
        rounds: Whole rounds; those that an answer's end cuts short are left out.
        tokens: Tokens those rounds emitted, bonus tokens included.
        histogram: Rounds by number of accepted draft tokens, 0 to K.
    """

    rounds: int
    tokens: int
    histogram: tuple[int, ...]

    @property
    def length(self) -> float:
        """Tokens per round, bonus included: the papers' acceptance length."""
        return self.tokens / self.rounds if self.rounds else 0.0


@torch.inference_mode()
def forced_acceptance(
    drafter: Drafter,
    source: FeatureSource,
    indices: Iterable[int],
    method: Method,
    tree: TreeConfig,
) -> ForcedAcceptance:
    """Walk trees along the given samples."""
    slots = drafter.spec.num_slots(drafter.block_size(tree.block_size))
    histogram = [0] * (slots + 1)
    for index in indices:
        sample = source.corpus.samples[index]
        context = source[index].context.to(drafter.target.dtype)
        for accepted, whole in _rounds(drafter, sample, context, method, tree, slots):
            if whole:
                histogram[accepted] += 1
    rounds = sum(histogram)
    tokens = sum(count * (accepted + 1) for accepted, count in enumerate(histogram))
    return ForcedAcceptance(rounds, tokens, tuple(histogram))


def _rounds(
    drafter: Drafter,
    sample: Sample,
    context: torch.Tensor,
    method: Method,
    tree: TreeConfig,
    slots: int,
) -> Iterable[tuple[int, bool]]:
    cache = drafter.new_cache()
    tokens = torch.from_numpy(sample.tokens).to(context.device)
    known = sample.tokens.tolist()
    root, last = sample.answer, len(known) - 1
    while root < last:
        drafter.extend(context[cache.length : root], cache)
        block = drafter.draft(tokens[root : root + 1], cache, tree.block_size)
        steps = BUILDERS[method](
            block, drafter.head, tokens[root : root + 1], drafter.target.embed, tree, slots
        )
        accepted = walk(finish(steps), known[root + 1 : root + 1 + slots])
        yield accepted, last - root > slots
        root += accepted + 1

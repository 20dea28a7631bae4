"""Checking an output against plain decoding, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dartree_core.config import DecodeConfig
from dartree_core.engine.sampling import Chooser
from dartree_core.models.selfcheck import ROUNDING
from dartree_core.models.target import Target


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where an output is not what plain decoding chooses.

    Attributes:
        index: Offset in the output.
        position: Absolute position in the sequence.
        token, expected: What stands there, and what plain decoding chooses.
        margin: Score of the choice less that of the token, in logits (after temperature and
            noise when sampling): how far rounding would have to move them.
        real: True when rounding cannot explain the margin.
    """

    index: int
    position: int
    token: int
    expected: int
    margin: float
    real: bool


def rescore(
    target: Target, prompt: Sequence[int], output: Sequence[int], config: DecodeConfig
) -> list[Divergence]:
    """Decode plainly along `output` and list where the choices differ.

    Every token gets a pass of its own, as in plain decoding, on the context that the output has;
    so each place is judged by itself and one divergence does not cause the next.

    Args:
        target: The model.
        prompt, output: Token ids.
        config: For its sampling settings; seeded noise is reproduced.
    """
    chooser = Chooser(config.sampling, prompt, target.device)
    cache = target.new_cache()
    tokens = torch.tensor(prompt, device=target.device)
    found = []
    for index, token in enumerate(output):
        out = target.forward(tokens, cache, last_only=True)
        cache.commit(torch.arange(len(tokens), device=target.device))
        position = len(prompt) + index
        scores = chooser.perturbed(out.logits, [position], [[]])[0]
        expected = int(scores.argmax())
        if expected != token:
            margin = float(scores[expected] - scores[token])
            scale = 1.0 if config.sampling.greedy else 1.0 / config.sampling.temperature
            real = margin > ROUNDING[target.dtype] * scale
            found.append(Divergence(index, position, int(token), expected, round(margin, 6), real))
        chooser.extend([token])
        tokens = torch.tensor([token], device=target.device)
    return found


def first_real(divergences: Sequence[Divergence]) -> Divergence | None:
    """The first divergence that rounding cannot explain."""
    return next((d for d in divergences if d.real), None)

"""Checking an output against plain decoding, token by token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dartree_core.config import DecodeConfig, SamplingConfig
from dartree_core.engine.footprint import PREFILL_CHUNK
from dartree_core.engine.sampling import Chooser
from dartree_core.models.kv_cache import KVCache
from dartree_core.models.selfcheck import rounding
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
    tokens: Sequence[int] = prompt
    found = []
    for index, token in enumerate(output):
        logits = _read(target, tokens, cache)
        position = len(prompt) + index
        scores = chooser.perturbed(logits, [position], [[]])[0]
        expected = int(scores.argmax())
        if expected != token:
            margin = round(float(scores[expected] - scores[token]), 6)
            context = [*prompt, *output[:index]]
            explained = _is_rounding(target, config.sampling, context, logits, int(token))
            found.append(Divergence(index, position, int(token), expected, margin, not explained))
        chooser.extend([token])
        tokens = [token]
    return found


def _read(target: Target, tokens: Sequence[int], cache: KVCache) -> Tensor:
    """Logits `[1, V]` after these tokens, which become part of the context."""
    logits = torch.empty(0)
    # A long prompt in one pass would need more memory than it did when it was decoded.
    for at in range(0, len(tokens), PREFILL_CHUNK):
        chunk = torch.tensor(tokens[at : at + PREFILL_CHUNK], device=target.device)
        logits = target.forward(chunk, cache, last_only=True).logits
        cache.commit(torch.arange(len(chunk), device=target.device))
    return logits


def _is_rounding(
    target: Target, sampling: SamplingConfig, context: Sequence[int], logits: Tensor, token: int
) -> bool:
    """True when logits `[1, V]` after `context` that moved by rounding could give `token`.

    Whether a token at the edge of a nucleus is kept is a matter of rounding too. So the choice is
    one among all tokens that are kept however logits round, and some of those that may be.
    """
    noise = rounding(target) / (1.0 if sampling.greedy else sampling.temperature)
    free = Chooser(replace(sampling, top_k=0, top_p=1.0, min_p=0.0), context, target.device)
    scores = free.perturbed(logits, [len(context)], [[]])[0]
    place = free.scores(logits, [[]])[0]
    # Logits that move by r move probabilities by a factor of exp(r) at most.
    factor = math.exp(min(noise, 1.0))
    sure, possible = (
        Chooser(_cut(sampling, f), context, target.device).scores(logits, [[]])[0].isfinite()
        for f in (factor, 1.0 / factor)
    )
    if bool(place[token] < place[possible].min() - noise):
        return False
    if not bool(sure.all()):
        sure &= place > place[~sure].max() + noise
    return not bool(sure.any()) or bool(scores[token] >= scores[sure].max() - noise)


def _cut(sampling: SamplingConfig, factor: float) -> SamplingConfig:
    """Settings that leave out `factor` times as much."""
    return replace(
        sampling,
        top_p=max(1.0 - (1.0 - sampling.top_p) * factor, 1e-9),
        min_p=min(sampling.min_p * factor, 1.0),
    )


def first_real(divergences: Sequence[Divergence]) -> Divergence | None:
    """The first divergence that rounding cannot explain."""
    return next((d for d in divergences if d.real), None)

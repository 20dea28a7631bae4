"""Coupled drafting: let the drafter see the noise the target will choose with.

When sampling, the target's choice at a position is `argmax(log p / T + g)` with noise g that is
known before anything is drafted (`noise`). So the drafter ranks by its own `log q / T` and the
same g: where q is close to p, both pick the same token, at any temperature. This is the shared
randomness of arXiv 2504.15475, on trees. Nothing about exactness changes: the draft only
proposes, and every emitted token is still the target's own choice.

A drafter is not its target, so the two are weighed: scores are `a * log q / T + b * g`, with a and
b the maximum-likelihood weights of the target's choices so far (logistic regression on two
features). That makes softmax of the scores the chance that the target chooses a token given the
noise, which is what path scores and pruning should be made of. A drafter that knows its target
gets b near a; one that noise would drown gets b near 0, and then drafts as the papers do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from dartree_core.config import DecodeConfig, Method, SamplingConfig
from dartree_core.draft.along import along
from dartree_core.draft.drafter import BlockDraft
from dartree_core.draft.heads import CorrectionHead
from dartree_core.draft.heads.base import Embed
from dartree_core.engine.noise import PositionNoise

_UNHEADED: tuple[Method, ...] = ("dflash", "ddtree")
_START = (1.0, 0.8)
_PRIOR = 8.0
"""Information, as of so many choices, that the start counts for."""
_FADE = 0.995
_STEP = 0.25
_WEIGHTS = (0.1, 8.0)
"""Least a, most a and b."""
_LEAST_NOISE = 0.05
"""A smaller b does not earn the work of adding noise."""
_RIVALS = 128
"""Tokens a choice is told from, the best by marginal score; a tree looks at fewer."""
_EAGER, _PATIENCE, _PATIENCE_OFF = 64, 4, 8
"""Choices learnt from in every round; after them only every so many rounds."""

_Key: TypeAlias = tuple[bool, SamplingConfig]


class Weights:
    """a and b, by Newton steps on the log-likelihood, whose information fades."""

    def __init__(self) -> None:
        self.a, self.b = _START
        self.choices = 0
        self._info = [_PRIOR, 0.0, _PRIOR]

    @property
    def couples(self) -> bool:
        """True when the noise has a say worth its cost."""
        return self.b >= _LEAST_NOISE

    def learn(self, x: Tensor, g: Tensor) -> None:
        """Choices among alternatives.

        Args:
            x, g: float32 `[n, m]`, drafter's scores over T, and noise. Column 0 was chosen;
                -inf scores are no alternatives.
        """
        p = torch.softmax(self.a * x + self.b * g, dim=-1)
        x = x.masked_fill(x.isinf(), 0.0)
        mean_x, mean_g = (p * x).sum(-1), (p * g).sum(-1)
        figures = torch.stack(
            (
                x[:, 0] - mean_x,
                g[:, 0] - mean_g,
                (p * x * x).sum(-1) - mean_x**2,
                (p * x * g).sum(-1) - mean_x * mean_g,
                (p * g * g).sum(-1) - mean_g**2,
            )
        ).sum(-1)
        grad_a, grad_b, *info = figures.double().tolist()
        if not all(abs(v) < 1e12 for v in (grad_a, grad_b, *info)):
            return  # overflowing half-precision logits say nothing
        fade = _FADE ** len(x)
        aa, ab, bb = (old * fade + new for old, new in zip(self._info, info, strict=True))
        # Never surer than the prior in any direction: text changes.
        self._info = [max(aa, _PRIOR / 2), ab, max(bb, _PRIOR / 2)]
        aa, ab, bb = self._info
        det = max(aa * bb - ab * ab, 1e-3 * aa * bb)
        self.a = _moved(self.a, (bb * grad_a - ab * grad_b) / det, _WEIGHTS[0])
        self.b = _moved(self.b, (aa * grad_b - ab * grad_a) / det, 0.0)
        self.choices += len(x)


def _moved(value: float, by: float, least: float) -> float:
    return min(_WEIGHTS[1], max(least, value + min(_STEP, max(-_STEP, by))))


@dataclass(slots=True)
class _Lesson:
    """What the next choices will be compared with."""

    block: BlockDraft
    head: CorrectionHead | None
    weights: Weights
    temperature: float
    noise: PositionNoise
    start: int


class Coupling:
    """One per decoder: what it learns about its drafter serves all turns.

    Weights are kept apart by sampling settings and by whether a head corrects the marginals.

    Args:
        embed: The target's embedding.
    """

    def __init__(self, embed: Embed) -> None:
        self._embed = embed
        self._known: dict[_Key, Weights] = {}
        self._lesson: _Lesson | None = None
        self._waited = 0

    def weights(self, config: DecodeConfig) -> Weights:
        """The weights in use for `config`'s method and sampling settings."""
        key = (config.method not in _UNHEADED, replace(config.sampling, seed=0))
        return self._known.setdefault(key, Weights())

    def apply(
        self,
        block: BlockDraft,
        head: CorrectionHead,
        config: DecodeConfig,
        noise: PositionNoise,
        start: int,
    ) -> BlockDraft:
        """The block as builders should rank it.

        Args:
            block: Marginals of the slots after the root.
            head: What the method corrects them with, if it does.
            config: Method and sampling settings of the turn; the temperature is above 0.
            noise: The noise that the target will choose with.
            start: Absolute position of the root; slot i stands at `start + 1 + i`.
        """
        weights, temperature = self.weights(config), config.sampling.temperature
        self._waited += 1
        patience = _PATIENCE if weights.couples else _PATIENCE_OFF
        if weights.choices < _EAGER or self._waited >= patience:
            used = None if config.method in _UNHEADED else head
            self._lesson = _Lesson(block, used, weights, temperature, noise, start)
        if not weights.couples:
            return block
        scale = weights.a / temperature
        logits = _noise(noise, start, block.num_slots, block)  # a copy, so changed in place
        logits.mul_(weights.b).add_(block.base_logits, alpha=scale)
        return BlockDraft(block.hidden, logits, block.vocabulary, scale)

    def learn(self, tokens: Sequence[int]) -> None:
        """The root, then the target's choices after it as far as they are known.

        Choices the drafter cannot propose say nothing.
        """
        lesson, self._lesson = self._lesson, None
        if lesson is None:
            return
        self._waited = 0
        block, weights = lesson.block, lesson.weights
        known = torch.tensor(tokens[: block.num_slots + 1], device=block.base_logits.device)
        rows = block.vocabulary.to_rows(known[1:])
        base = block.base_logits[: len(rows)] / lesson.temperature
        noise = _noise(lesson.noise, lesson.start, len(rows), block)
        most = lesson.head.max_candidates if lesson.head else None
        count = min(most or _RIVALS, _RIVALS, base.shape[1])
        rivals = torch.add(weights.b * noise, base, alpha=weights.a).topk(count, dim=-1).indices
        # The choice comes first, and is no rival of its own.
        columns = torch.cat((rows.clamp(min=0)[:, None], rivals), dim=1)
        x, g = base.gather(1, columns), noise.gather(1, columns)
        if lesson.head is not None:
            x += self._corrections(lesson.head, block, known, columns) / lesson.temperature
        x[:, 1:].masked_fill_(columns[:, 1:] == columns[:, :1], -torch.inf)
        told = rows >= 0
        if bool(told.any()):
            weights.learn(x[told], g[told])

    def _corrections(
        self, head: CorrectionHead, block: BlockDraft, known: Tensor, columns: Tensor
    ) -> Tensor:
        """The head's corrections of rows `columns` `[n, m]` along the known path."""
        out = block.base_logits.new_zeros(columns.shape)
        path = along(head, self._embed, block.hidden[: len(columns)], known)
        for slot, (shared, states) in enumerate(path):
            if slot >= head.prefix_len:
                out[slot] = head.correct(shared, states, columns[slot])[0]
        return out


def _noise(noise: PositionNoise, start: int, count: int, block: BlockDraft) -> Tensor:
    """Noise of the drafter's rows at the first `count` slots, `[count, Vd]`."""
    vocabulary, device = block.vocabulary, block.base_logits.device
    positions = range(start + 1, start + 1 + count)
    rows = noise.rows(positions, vocabulary.reach, device)
    return rows if vocabulary.ids is None else rows[:, vocabulary.ids]

"""How the target chooses a token: argmax, or a draw whose noise is keyed by position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dartree_core.config import SamplingConfig
from dartree_core.engine.noise import PositionNoise


class Chooser:
    """The target's choices for one turn.

    The choice at a tree node depends on the node's own path alone: logits there, processors
    applied to the tokens of prompt, answer and path, and the noise of its position. So it is the
    choice plain decoding would make at that point, whatever else the tree holds.

    Args:
        sampling: Settings; processors are transformers' own, in its order.
        context: Prompt token ids; `extend` adds what is emitted.
        device: Where logits live.
    """

    def __init__(
        self, sampling: SamplingConfig, context: Sequence[int], device: torch.device
    ) -> None:
        self.sampling = sampling
        self.device = device
        self._processors = _processors(sampling)
        penalised = sampling.repetition_penalty != 1.0
        self._context = dict.fromkeys(context) if penalised else None
        self._known: Tensor | None = None
        self.noise = PositionNoise(sampling.seed)

    def extend(self, tokens: Sequence[int]) -> None:
        """Tokens that became part of the answer."""
        if self._context is not None:
            before = len(self._context)
            self._context |= dict.fromkeys(tokens)
            if len(self._context) > before:
                self._known = None

    @property
    def plain_argmax(self) -> bool:
        """True when a choice is just the argmax of a row, so that all rows cost one call."""
        return self.sampling.greedy and not self._processors

    def choose(
        self, logits: Tensor, positions: Sequence[int], paths: Sequence[Sequence[int]]
    ) -> Tensor:
        """One choice per row.

        Args:
            logits: float32 `[r, V]`.
            positions: Per row the absolute position of the token to be chosen.
            paths: Per row the draft tokens between the context, which ends with the root, and
                the choice.

        Returns:
            int64 `[r]`.
        """
        return argmax(self.perturbed(logits, positions, paths))

    def perturbed(
        self, logits: Tensor, positions: Sequence[int], paths: Sequence[Sequence[int]]
    ) -> Tensor:
        """Scores `[r, V]` whose argmax is the choice: processed logits, plus the positions'
        noise when sampling (Gumbel-max). Arguments as in `choose`."""
        if self.plain_argmax:
            return logits
        scores = self.scores(logits, paths)
        if self.sampling.greedy:
            return scores
        return scores + self.noise.rows(positions, scores.shape[1], scores.device)

    def scores(self, logits: Tensor, paths: Sequence[Sequence[int]]) -> Tensor:
        """Processed logits, whose softmax is the distribution a choice is drawn from."""
        if not self._processors:
            return logits
        history = self._histories(paths)
        for processor in self._processors:
            logits = processor(history, logits)
        return logits

    def _histories(self, paths: Sequence[Sequence[int]]) -> Tensor | None:
        """Tokens of context and path per row; only the repetition penalty looks at them.

        The penalty is on the set of tokens. So those of the context, which every row shares, are
        told once each, and paths are filled up with one of them.
        """
        if self._context is None:
            return None
        if self._known is None:
            self._known = torch.tensor(list(self._context), device=self.device)
        known = self._known.expand(len(paths), -1)
        longest = max(map(len, paths))
        if not longest:
            return known
        filler = next(iter(self._context))
        filled = [[*path, *[filler] * (longest - len(path))] for path in paths]
        return torch.cat((known, torch.tensor(filled, device=self.device)), dim=1)


def argmax(scores: Tensor) -> Tensor:
    """Place of the largest score of each row `[r, V]`, the first of equals: int64 `[r]`."""
    if scores.device.type != "cpu":
        return scores.argmax(dim=-1)
    # On a CPU NumPy is several times as fast as PyTorch.
    return torch.from_numpy(scores.numpy().argmax(axis=-1))


def _processors(sampling: SamplingConfig) -> list[Any]:
    from transformers import (
        MinPLogitsWarper,
        RepetitionPenaltyLogitsProcessor,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    out: list[Any] = []
    if sampling.repetition_penalty != 1.0:
        out.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    if sampling.greedy:
        return out
    if sampling.temperature != 1.0:
        out.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        out.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1.0:
        out.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p > 0.0:
        out.append(MinPLogitsWarper(sampling.min_p))
    return out

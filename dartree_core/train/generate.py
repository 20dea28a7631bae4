"""Batched generation by the target, for corpora: many prompts at once, one temperature each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from dartree_core.models.lean import LeanTarget
from dartree_core.models.target import Target
from dartree_core.train.lean_rows import LeanRows
from dartree_core.train.quick import HALF


class Rows(Protocol):
    """Answers under way, a row each."""

    def begin(self) -> Tensor:
        """Read the prompts; logits `[b, V]` after each."""
        ...

    def step(self, tokens: Tensor) -> Tensor:
        """Add a token (int64 `[b]`) to each row; logits `[b, V]` after it."""
        ...

    def keep(self, chosen: Sequence[int]) -> list[int]:
        """Drop all rows but these (ascending); returns them in the order in which they lie now."""
        ...


class ModelRows:
    """A batch through transformers' own forward pass and cache, padded on the left."""

    def __init__(self, target: Target, prompts: Sequence[Sequence[int]]) -> None:
        from transformers import DynamicCache

        self._target = target
        width = max(len(p) for p in prompts)
        padding = torch.tensor([width - len(p) for p in prompts])
        places = torch.arange(width) - padding[:, None]
        tokens = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts])
        self._prompt = tokens.to(target.device), places.clamp(min=0).to(target.device)
        self._mask = (places >= 0).long().to(target.device)
        self._position = (width - padding)[:, None].to(target.device)
        self._cache: Any = DynamicCache(config=target.config)

    def begin(self) -> Tensor:
        """See `Rows`."""
        return self._pass(*self._prompt)

    def step(self, tokens: Tensor) -> Tensor:
        """See `Rows`."""
        self._mask = torch.cat((self._mask, torch.ones_like(tokens)[:, None]), dim=1)
        logits = self._pass(tokens[:, None], self._position)
        self._position = self._position + 1
        return logits

    def keep(self, chosen: Sequence[int]) -> list[int]:
        """See `Rows`."""
        rows = torch.tensor(chosen, device=self._mask.device)
        self._mask = self._mask[rows]
        self._position = self._position[rows]
        self._cache.batch_select_indices(rows)
        return list(chosen)

    def _pass(self, tokens: Tensor, positions: Tensor) -> Tensor:
        target = self._target
        out = target.model(
            input_ids=tokens,
            attention_mask=self._mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **{target.cache_key: self._cache},
        )
        logits: Tensor = out.logits[:, -1].float()
        return logits


@torch.inference_mode()
def generate_batch(
    target: Target,
    prompts: Sequence[Sequence[int]],
    temperatures: Sequence[float],
    max_new_tokens: int,
    end_tokens: frozenset[int],
    generator: torch.Generator,
) -> list[list[int]]:
    """Answer prompts together.

    Args:
        target: The model; on the lean path several times faster on a CPU.
        prompts: Token ids.
        temperatures: One a prompt; 0 is greedy.
        max_new_tokens: Longest answer; it also ends with the target's context.
        end_tokens: End an answer, and belong to it.
        generator: Draws the sampled tokens, on the CPU.

    Returns:
        The answers' token ids, in the order of `prompts`.
    """
    rows = _rows(target, prompts, max_new_tokens)
    heat = torch.tensor(temperatures, dtype=torch.float32, device=target.device)
    answers: list[list[int]] = [[] for _ in prompts]
    most = [min(max_new_tokens, target.max_positions - len(prompt)) for prompt in prompts]
    index = list(range(len(prompts)))
    logits = rows.begin()
    while True:
        chosen = _choose(logits, heat, generator)
        going = []
        for row, token in enumerate(chosen.tolist()):
            answer = answers[index[row]]
            answer.append(token)
            if token not in end_tokens and len(answer) < most[index[row]]:
                going.append(row)
        if not going:
            return answers
        if len(going) < len(index):
            order = rows.keep(going)
            index = [index[row] for row in order]
            picked = torch.tensor(order, device=chosen.device)
            chosen, heat = chosen[picked], heat[picked]
        logits = rows.step(chosen)


def _rows(target: Target, prompts: Sequence[Sequence[int]], most: int) -> Rows:
    if not isinstance(target, LeanTarget):
        return ModelRows(target, prompts)
    return LeanRows(target, prompts, most, torch.bfloat16 if target.kernel == HALF else None)


def _choose(logits: Tensor, temperature: Tensor, generator: torch.Generator) -> Tensor:
    chosen = logits.argmax(-1)
    sampled = temperature > 0
    if bool(sampled.any()):
        scaled = logits[sampled] / temperature[sampled, None]
        # Drawn on the CPU, so that a seed means the same on every device.
        probabilities = torch.softmax(scaled, dim=-1).cpu()
        draws = torch.multinomial(probabilities, 1, generator=generator)[:, 0]
        chosen[sampled] = draws.to(chosen.device)
    return chosen

"""Batched generation by the target, for corpora: many prompts at once, one temperature each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dartree_core.models.target import Target


@dataclass(slots=True)
class _Rows:
    """The rows still generating, in batch order.

    Attributes:
        index: Which prompt each row answers.
        temperature: float32 `[b]`.
        mask: int64 `[b, t]`, 1 where a key is a token, 0 where it is padding.
        position: int64 `[b, 1]`, of the next token.
        cache: transformers' dynamic cache.
    """

    index: list[int]
    temperature: Tensor
    mask: Tensor
    position: Tensor
    cache: Any

    def keep(self, chosen: Tensor) -> None:
        """Drop the rows that `chosen` (int64) does not name."""
        self.index = [self.index[i] for i in chosen.tolist()]
        self.temperature = self.temperature[chosen]
        self.mask = self.mask[chosen]
        self.position = self.position[chosen]
        self.cache.batch_select_indices(chosen)


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
        target: The model.
        prompts: Token ids.
        temperatures: One a prompt; 0 is greedy.
        max_new_tokens: Longest answer.
        end_tokens: End an answer, and belong to it.
        generator: Draws the sampled tokens, on the CPU.

    Returns:
        The answers' token ids, in the order of `prompts`.
    """
    answers: list[list[int]] = [[] for _ in prompts]
    tokens, positions, rows = _begin(target, prompts, temperatures)
    for _ in range(max_new_tokens):
        out = target.model(
            input_ids=tokens,
            attention_mask=rows.mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **{target.cache_key: rows.cache},
        )
        chosen = _choose(out.logits[:, -1].float(), rows.temperature, generator)
        going = []
        for row, token in enumerate(chosen.tolist()):
            answers[rows.index[row]].append(token)
            if token not in end_tokens:
                going.append(row)
        if not going:
            break
        if len(going) < len(chosen):
            kept = torch.tensor(going, device=chosen.device)
            rows.keep(kept)
            chosen = chosen[kept]
        tokens, positions = chosen[:, None], rows.position
        rows.mask = torch.cat((rows.mask, torch.ones_like(tokens)), dim=1)
        rows.position = rows.position + 1
    return answers


def _begin(
    target: Target, prompts: Sequence[Sequence[int]], temperatures: Sequence[float]
) -> tuple[Tensor, Tensor, _Rows]:
    """Left-padded tokens and positions `[b, t]` of the prompts, and their rows."""
    from transformers import DynamicCache

    device = target.device
    width = max(len(p) for p in prompts)
    padding = torch.tensor([width - len(p) for p in prompts])
    tokens = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts])
    places = torch.arange(width) - padding[:, None]
    rows = _Rows(
        index=list(range(len(prompts))),
        temperature=torch.tensor(temperatures, dtype=torch.float32, device=device),
        mask=(places >= 0).long().to(device),
        position=(width - padding)[:, None].to(device),
        cache=DynamicCache(config=target.config),
    )
    return tokens.to(device), places.clamp(min=0).to(device), rows


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

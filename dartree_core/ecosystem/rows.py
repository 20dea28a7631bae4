"""A padded batch as rows of plain token ids, and answers back as a padded batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dartree_core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence of the batch: its ids, and how many pad tokens stood before them."""

    ids: list[int]
    padding: int


def read_rows(input_ids: Tensor, model_kwargs: Mapping[str, Any]) -> list[Row]:
    """Sequences of the batch without their padding.

    Args:
        input_ids: int64 `[b, n]`.
        model_kwargs: `attention_mask` `[b, n]` or None (nothing is padding); `position_ids`.

    Raises:
        ConfigError: Padding is not all on the left, a row is empty, or positions do not count
            from the first token.
    """
    mask = model_kwargs.get("attention_mask")
    whole = torch.ones_like(input_ids) if mask is None else (mask != 0).to(input_ids)
    if whole.shape != input_ids.shape:
        raise ConfigError(
            f"attention_mask is {tuple(whole.shape)}, but input_ids {tuple(input_ids.shape)}.",
            "Give a mask of the prompt's own shape.",
        )
    if bool((whole.diff(dim=1) < 0).any()):
        raise ConfigError(
            "attention_mask hides tokens behind visible ones; custom_generate reads left-padded "
            "prompts.",
            "Set padding_side='left' on the tokenizer.",
        )
    _check_positions(model_kwargs.get("position_ids"), whole)
    rows = []
    for ids, length in zip(input_ids.tolist(), whole.sum(dim=1).tolist(), strict=True):
        if not length:
            raise ConfigError("A prompt of the batch is empty.", "Give at least one token.")
        rows.append(Row(ids[len(ids) - length :], len(ids) - length))
    return rows


def _check_positions(positions: Tensor | None, whole: Tensor) -> None:
    if positions is None:
        return
    expected = whole.cumsum(dim=1) - 1
    plain = positions.shape == whole.shape or positions.shape == (1, whole.shape[1])
    if not plain or bool(((positions != expected) & (whole == 1)).any()):
        raise ConfigError(
            "position_ids do not count each prompt's tokens from 0.",
            "Leave them out.",
        )


def join_rows(input_ids: Tensor, answers: Sequence[list[int]], generation: Any) -> Tensor:
    """Prompts as they came, answers behind them, ended rows padded to the longest.

    Returns:
        int64 `[b, n + longest]` on the prompt's device.

    Raises:
        ConfigError: Padding is needed but there is no pad token.
    """
    longest = max(len(answer) for answer in answers)
    pad = _pad_token(generation)
    if pad is None and any(len(answer) < longest for answer in answers):
        raise ConfigError(
            "Rows end at different lengths, but there is no pad token.",
            "Pass pad_token_id= to generate.",
        )
    filled = [answer + [pad or 0] * (longest - len(answer)) for answer in answers]
    return torch.cat((input_ids, torch.tensor(filled, device=input_ids.device)), dim=1)


def _pad_token(generation: Any) -> int | None:
    """`generate` puts its choice (a pad token, else the first end token) into a private tensor."""
    prepared = getattr(generation, "_pad_token_tensor", None)
    if prepared is not None:
        return int(prepared.flatten()[0])
    found: int | None = generation.pad_token_id
    return found

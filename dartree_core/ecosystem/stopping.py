"""When a row ends: transformers' stopping criteria, asked token by token.

A round may emit several tokens. Every criterion sees each of them at the end of the sequence that
plain decoding would have shown it, so a row is cut at the same token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import torch
from torch import Tensor

Ends: TypeAlias = Callable[[int], bool]
"""Takes a row's next token; True when it is the last one."""


class Stopping:
    """The criteria of one `generate` call.

    Args:
        criteria: A `StoppingCriteriaList`, or any callables of the same kind.
        input_ids: int64 `[b, n]`, padding included, as criteria expect it.

    Attributes:
        limit: Most tokens a row may emit, or None where no criterion limits it.
    """

    def __init__(self, criteria: Iterable[Any], input_ids: Tensor) -> None:
        from transformers import EosTokenCriteria, MaxLengthCriteria

        self._input_ids = input_ids
        self._others: list[Any] = []
        self._eos: set[int] = set()
        lengths = []
        for criterion in criteria:
            # Subclasses may do anything: only the two themselves have a shortcut.
            if type(criterion) is MaxLengthCriteria:
                lengths.append(int(criterion.max_length))
            elif type(criterion) is EosTokenCriteria:
                self._eos.update(criterion.eos_token_id.flatten().tolist())
            else:
                self._others.append(criterion)
        # `generate` asks after a token is out, so there is always one.
        self.limit = max(1, min(lengths) - input_ids.shape[1]) if lengths else None

    def row(self, row: int) -> Ends:
        """Watches one row of the batch."""
        sequence = self._input_ids[row : row + 1]
        length = sequence.shape[1]

        def ends(token: int) -> bool:
            nonlocal sequence, length
            if self._others:
                if length == sequence.shape[1]:
                    sequence = torch.cat((sequence, torch.zeros_like(sequence)), dim=1)
                sequence[0, length] = token
                length += 1
                seen = sequence[:, :length]
                # All are asked, as `StoppingCriteriaList` does: some keep count.
                verdicts = [bool(torch.as_tensor(c(seen, None)).any()) for c in self._others]
                if any(verdicts):
                    return True
            return token in self._eos

        return ends

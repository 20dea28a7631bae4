"""What targets do to the products of their output table before they are logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dartree_core.models.target import Target

_FACTORS = ("logits_scaling", "logit_scale", "output_multiplier", "lm_head_multiplier")
"""Settings by which some targets multiply their logits, and others divide."""
_ROWS = 8


def softcap(target: Target) -> float | None:
    """The bound that logits are squeezed below, or None."""
    found: float | None = getattr(target.config, "final_logit_softcapping", None)
    return found


def logit_factor(target: Target) -> float:
    """What the output table's products are multiplied with, 1 for most targets.

    Families do not agree on which way a setting works, so the model's own logits decide. That
    takes a pass, of all processes where the target is held in parts.
    """
    named = [getattr(target.config, name, None) for name in _FACTORS]
    given = [float(value) for value in named if isinstance(value, int | float) and value > 0]
    factors = sorted({1.0, *given, *(1 / value for value in given)})
    if len(factors) == 1:
        return 1.0
    plain, own = _one_row(target)
    cap = softcap(target)

    def error(factor: float) -> float:
        logits = plain * factor
        if cap is not None:
            logits = cap * torch.tanh(logits / cap)
        return float((logits - own).abs().mean())

    return min(factors, key=error)


def _one_row(target: Target) -> tuple[Tensor, Tensor]:
    """float32 `[V]` twice: the output table's products, its bias included, and the logits."""
    final: list[Tensor] = []
    model: Any = target.model
    hook = model.get_decoder().register_forward_hook(
        lambda _module, _inputs, output: final.append(output.last_hidden_state[0, -1])
    )
    tokens = torch.arange(min(_ROWS, target.vocab_size), device=target.device)
    try:
        with torch.no_grad():
            own = model(input_ids=tokens[None], use_cache=False, logits_to_keep=1).logits
            plain = target.output(final[0].to(target.device))
    finally:
        hook.remove()
    return plain.float(), own[0, -1].float().to(target.device)

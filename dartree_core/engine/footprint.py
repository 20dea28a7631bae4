"""How much memory a turn will need, said before it starts rather than found out halfway.

Counted are what grows with the turn: keys and values of target and drafter, with the copy made
while a full cache moves to a larger one; features on their way to the drafter; and the workspace
of the largest pass. Weights are loaded already, so what is free no longer includes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from dartree_core.config import CHAINS, DecodeConfig
from dartree_core.errors import CapacityError
from dartree_core.models.lean import LeanTarget
from dartree_core.models.room import text
from dartree_core.models.target import Target

if TYPE_CHECKING:
    from dartree_core.draft.cache import DraftCache
    from dartree_core.draft.drafter import Drafter
    from dartree_core.engine.session import Session
    from dartree_core.models.kv_cache import KVCache

PREFILL_CHUNK = 1024
"""Prompt tokens read in one pass: what bounds the workspace of a long prompt."""
_GROWTH = 256
"""Positions by which caches grow that have no fixed address."""
_SLACK = 0.95
"""Share of the free memory a turn may be predicted to need; allocators round up."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Predicted bytes of a turn, beside the models' weights.

    Attributes:
        target_kv, draft_kv: Keys and values at their peak.
        features: Target features that the drafter has not read yet.
        workspace: Activations, masks and logits of the largest pass.
    """

    target_kv: int
    draft_kv: int
    features: int
    workspace: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.target_kv + self.draft_kv + self.features + self.workspace


def predict(
    target: Target,
    drafter: Drafter | None,
    prompt: int,
    config: DecodeConfig,
    session: Session | None = None,
) -> Footprint:
    """What a turn of `prompt` tokens and as many new ones as `config` allows can need at most.

    With a session, its caches count as they are: they grow only where they are too small.
    """
    shape = target.config
    heads = shape.num_attention_heads
    kv_heads = getattr(shape, "num_key_value_heads", None) or heads
    dim = getattr(shape, "head_dim", None) or target.hidden_size // heads
    inner = getattr(shape, "intermediate_size", None) or 4 * target.hidden_size
    item = target.dtype.itemsize
    tree = _most_nodes(drafter, config)
    held, draft_held = (0, 0) if session is None else _capacities(session)
    most = min(prompt + config.max_new_tokens, target.max_positions)
    needs = [*range(PREFILL_CHUNK, prompt, PREFILL_CHUNK), prompt, most + tree]
    position = 2 * target.num_layers * kv_heads * dim * item
    grow = _static if isinstance(target, LeanTarget) and target.graphs else _grown
    chunk = min(prompt, PREFILL_CHUNK)
    rows = max(chunk, tree + 1)
    # A layer's projections and gates live together; masks are one row a query head of a group.
    activations = rows * (3 * inner + 8 * target.hidden_size) * item
    masks = rows * (heads // kv_heads) * most * (1 + item)
    logits = 2 * (tree + 1) * target.vocab_size * torch.float32.itemsize
    draft_kv = features = 0
    if drafter is not None and tree:
        spec = drafter.spec
        row = 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * item
        draft_kv = row * _peak(needs, _draft_grown, draft_held)
        # Joined and encoded chunk by chunk; the encoder's own output is as long.
        features = 2 * chunk * len(drafter.taps) * target.hidden_size * item
    return Footprint(
        position * _peak(needs, grow, held), draft_kv, features, activations + masks + logits
    )


def require(
    target: Target,
    drafter: Drafter | None,
    prompt: int,
    config: DecodeConfig,
    session: Session,
    free: int | None,
) -> None:
    """Refuse a turn that would run out of memory.

    Args:
        target, drafter, prompt, config: As in `predict`.
        session: Its caches are there already and need not be found again.
        free: Bytes that are free, or None to let everything pass.

    Raises:
        CapacityError: The turn is predicted to need more.
    """
    # A target spread over devices has no one memory to ask.
    if free is None or type(target) not in (Target, LeanTarget):
        return
    needed = predict(target, drafter, prompt, config, session)
    there = _held_bytes(session, config)
    beside = max(0, needed.total - there)
    if beside <= _SLACK * free:
        return
    parts = {
        "keys and values": needed.target_kv,
        "the drafter's": needed.draft_kv + needed.features,
        "workspace": needed.workspace,
    }
    said = ", ".join(f"{name} {text(size)}" for name, size in parts.items() if size)
    raise CapacityError(
        f"A prompt of {prompt} tokens with up to {config.max_new_tokens} new ones needs about "
        f"{text(beside)} beside the loaded models ({said}), but only {text(free)} of "
        f"{target.device.type} memory are free.",
        _remedy(target, drafter, prompt, config, session, _SLACK * free),
    )


def _most_nodes(drafter: Drafter | None, config: DecodeConfig) -> int:
    """Draft nodes that a round can verify at most, whatever its budget; 0 for plain decoding."""
    if drafter is None or config.method == "ar":
        return 0
    tree = config.tree
    slots = drafter.spec.num_slots(drafter.block_size(tree.block_size))
    if config.method in CHAINS:
        return slots
    grown = config.method == "dartree" and not tree.graft
    return min(tree.limit, slots * tree.width) if grown else tree.limit


def _capacities(session: Session) -> tuple[int, int]:
    """Positions there is room for in the caches of target and drafter."""
    draft = session.draft_cache
    return _there(session.cache)[0], _there(draft)[0] if draft else 0


def _held_bytes(session: Session, config: DecodeConfig) -> int:
    """Bytes of a session's caches that a turn counts among its own."""
    draft = session.draft_cache if config.method != "ar" else None
    return _there(session.cache)[1] + (_there(draft)[1] if draft else 0)


def _there(cache: KVCache | DraftCache) -> tuple[int, int]:
    """Positions there is room for, and their bytes: in a cache, or in what lies idle and would
    be lent to it."""
    own = (cache.capacity, cache.nbytes)
    return own if cache.idle is None else max(own, (cache.idle.capacity, cache.idle.nbytes))


def _remedy(
    target: Target,
    drafter: Drafter | None,
    prompt: int,
    config: DecodeConfig,
    session: Session,
    room: float,
) -> str:
    """What helps, largest loss of service last."""

    def fits(**changes: object) -> bool:
        changed = config.with_changes(**changes)
        needed = predict(target, drafter, prompt, changed, session).total
        return needed <= room + _held_bytes(session, changed)

    if config.max_new_tokens > 1 and fits(max_new_tokens=max(1, config.max_new_tokens // 4)):
        return f"Lower --max-new-tokens, for example to {max(1, config.max_new_tokens // 4)}."
    if config.method != "ar" and fits(budget=8):
        return "Verify less in a round, for example with --budget 8."
    if config.method != "ar" and fits(method="ar"):
        return "Decode plainly with --method ar, or shorten the prompt."
    smaller = " or use a dtype of half the size" if target.dtype == torch.float32 else ""
    return f"Shorten the prompt, lower --max-new-tokens, free some memory{smaller}."


def _peak(needs: Iterable[int], grow: Callable[[int, int], int], held: int) -> int:
    """Positions held at worst by a cache that has room for `held` and has to hold `needs` one
    after the other: while it moves, the old and the new."""
    capacity = peak = held
    for need in needs:
        if need > capacity:
            larger = grow(capacity, need)
            capacity, peak = larger, max(peak, capacity + larger)
    return peak


def _grown(capacity: int, need: int) -> int:
    return -(-max(need, capacity * 3 // 2) // _GROWTH) * _GROWTH


def _draft_grown(capacity: int, need: int) -> int:
    return -(-(need * 3 // 2) // _GROWTH) * _GROWTH


def _static(capacity: int, need: int) -> int:
    from dartree_core.models.buckets import arena_length

    return arena_length(need)

"""Answers that stopped before their end, and how a decoder can go on with them.

An answer goes on from token ids: the prompt's and those emitted so far. Noise is a function of
seed and position, so what follows is what would have followed, sampled or not, also in another
worker that never saw the conversation.
"""

from __future__ import annotations

from dartree_core.worker_protocol import Generate
from dartree_tui.store import Store, Turn


def unfinished(store: Store) -> Turn | None:
    """The newest turn, if its answer was cut off, stopped, or met the length limit."""
    turn = store.turn
    if turn is None or not turn.text or not turn.prompt_ids or not turn.over:
        return None
    if turn.finished is not None and turn.finished.reason not in ("length", "cancelled"):
        return None
    return turn


def request_for(store: Store, turn: Turn, max_new_tokens: int) -> Generate:
    """What makes a worker write the rest of a turn.

    Args:
        store: Where the turn is.
        turn: As `unfinished` found it.
        max_new_tokens: Limit of a whole answer. What is left of it is asked for, and all of it
            again when the turn had used it up.
    """
    emitted = store.tokens_of(turn)
    # What was emitted but is not in the text, half a character or the end of the answer itself,
    # is to come again.
    while emitted and not turn.text.endswith(store.vocab.text(emitted[-1])):
        emitted.pop()
    left = max_new_tokens - len(emitted)
    config = {**turn.config, "max_new_tokens": left if left > 0 else max_new_tokens}
    return Generate([*turn.prompt_ids, *emitted], config=config)

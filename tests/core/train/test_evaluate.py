"""What `train eval` measures: whole conversations, and accuracy only of drafters trained here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dartree_core.config import DecodeConfig
from dartree_core.draft import Drafter, read_checkpoint
from dartree_core.engine import Decoder
from dartree_core.events import Event, TurnFinished
from dartree_core.models import Target
from dartree_core.train.corpus import Corpus, CorpusError, Sample
from dartree_core.train.evaluate import Variant, decoded_rows, foreign_part, held_out
from dartree_core.train.prompts import PromptRow
from tests.core import drafters, tiny
from tests.core.train.conftest import CHECKPOINTS


class Listening(Decoder):
    """Keeps what it was given and what it answered."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.given: list[list[dict[str, str]]] = []
        self.answered: list[str] = []

    def stream(self, prompt: Any, config: DecodeConfig, **options: Any) -> Iterator[Event]:
        self.given.append([dict(message) for message in prompt])
        for event in super().stream(prompt, config, **options):
            if isinstance(event, TurnFinished):
                self.answered.append(event.text)
            yield event


def test_later_turns_read_the_whole_replies(target: Target, tokenizer: Any) -> None:
    drafter = Drafter(read_checkpoint(CHECKPOINTS / "draft_tied_p0_s0"), target)
    decoder = Listening(target, drafter, tokenizer)
    turns = PromptRow(("w3 w4", "w8", "w9"), "chat")
    list(
        decoded_rows(decoder, [turns], [Variant("domino", 1)], 0.0, max_new_tokens=6, depth_bonus=0)
    )
    said = [m["content"] for m in decoder.given[-1] if m["role"] == "assistant"]
    assert said == decoder.answered[:2]
    assert all(len(text.split()) == 6 for text in said)


def bound(folder: Path, target: Target) -> str:
    checkpoint = read_checkpoint(folder)
    return foreign_part(checkpoint, Drafter(checkpoint, target))


def test_drafters_of_other_kinds_are_told_apart(tmp_path: Path) -> None:
    llama = tiny.target("llama")
    own = tiny.draft_config(llama)

    def part(name: str, config: dict[str, Any]) -> str:
        return bound(drafters.write(tmp_path / name, config, llama), llama)

    headless = {k: v for k, v in own.items() if k != "projector_type"}
    assert part("own", own) == ""
    assert part("headless", headless) == ""
    assert part("dspark", drafters.shrunk(drafters.DSPARK)) == "a dspark head"
    # A copy of the target's table is none of its own.
    assert part("copy", drafters.shrunk(drafters.SPECULATORS_DFLASH)) == ""
    assert part("scaled", headless | {"output_multiplier": 0.5}) == "scaled or bounded logits"
    flags = {"is_causal": True}
    assert part("causal", headless | {"dflash_config": flags}) == "layers that look only backwards"
    table = {"embed_tokens.weight": llama.embedding.weight.detach() + 1}
    tables = tiny.save_draft(tmp_path / "tables", own, extra=table)
    assert bound(tables, llama) == "token tables of its own"


def test_answers_of_another_vocabulary_are_refused(target: Target) -> None:
    drafter = Drafter(read_checkpoint(CHECKPOINTS / "draft_tied_p0_s0"), target)
    sample = Sample(np.array([3, 4, 5, 512]), 2, 0.0, "")
    with pytest.raises(CorpusError, match="token 512, but the target has 512"):
        held_out(drafter, Corpus((sample,)), [], 0.0)

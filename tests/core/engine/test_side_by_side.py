"""Interleaved turns, and outputs scored again with plain decoding."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dartree_core.config import DecodeConfig
from dartree_core.engine.interleave import interleave
from dartree_core.engine.rescore import first_real, rescore
from dartree_core.events import PrefillDone, RoundDone, TurnFinished
from tests.core import tiny

PROMPT = [7, 100, 31, 8, 250]


def test_interleaved_turns_keep_step() -> None:
    decoder = tiny.trained("tied")
    plain = DecodeConfig(method="ar", max_new_tokens=40)
    turns = [
        decoder.stream(PROMPT, plain.with_changes(method="dartree", budget=16)),
        decoder.stream(PROMPT, plain),
    ]
    emitted, most, finished = [0, 0], 0, {}
    for index, event in interleave(turns):
        if isinstance(event, PrefillDone):
            emitted[index] += 1
        elif isinstance(event, RoundDone):
            emitted[index] += len(event.tokens)
            most = max(most, len(event.tokens))
        elif isinstance(event, TurnFinished):
            finished[index] = event
        assert abs(emitted[0] - emitted[1]) <= max(most, 1)
    assert finished[0].token_ids == finished[1].token_ids
    assert emitted == [40, 40]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_true_output_has_no_divergence(temperature: float) -> None:
    decoder = tiny.trained("tied")
    config = DecodeConfig(max_new_tokens=24).with_changes(
        budget=16, temperature=temperature, seed=4, repetition_penalty=1.2
    )
    ids = decoder.generate(PROMPT, config).token_ids
    assert rescore(decoder.target, PROMPT, ids, config) == []


def test_every_forged_token_is_found_where_it_stands() -> None:
    decoder = tiny.trained("tied")
    config = DecodeConfig(max_new_tokens=16).with_changes(budget=16)
    ids = list(decoder.generate(PROMPT, config).token_ids)
    forged = [*ids[:9], (ids[9] + 1) % 500, *ids[10:]]
    found = rescore(decoder.target, PROMPT, forged, config)
    assert (found[0].index, found[0].token, found[0].expected) == (9, forged[9], ids[9])
    assert found[0].position == len(PROMPT) + 9
    assert found[0].margin > 0
    assert first_real(found) == found[0]


def test_a_near_tie_is_not_called_a_divergence(monkeypatch: Any) -> None:
    """Plain decoding's own output, scored with logits that differ as rounding makes them."""
    decoder = tiny.trained("tied")
    config = DecodeConfig(method="ar", max_new_tokens=4)
    ids = list(decoder.generate(PROMPT, config).token_ids)
    forward = decoder.target.forward

    def tied(*args: Any, **options: Any) -> Any:
        out = forward(*args, **options)
        best = out.logits[-1].max()
        out.logits = out.logits.clone()
        out.logits[-1, 3] = best + 2e-4
        return out

    monkeypatch.setattr(decoder.target, "forward", tied)
    found = rescore(decoder.target, PROMPT, ids, config)
    assert len(found) == 4
    assert all(d.expected == 3 and 0 < d.margin < 1e-3 for d in found)
    assert first_real(found) is None


@pytest.mark.parametrize(
    "truncation", [{"top_p": 0.6}, {"min_p": 0.3}, {"top_k": 3}], ids=lambda t: next(iter(t))
)
def test_rounding_at_the_edge_of_what_is_kept_is_no_divergence(
    truncation: dict[str, Any], monkeypatch: Any
) -> None:
    """The run kept one token more than plain decoding does, by less than rounding."""
    decoder = tiny.trained("tied")
    config = DecodeConfig(method="ar", max_new_tokens=1).with_changes(temperature=1.0, **truncation)
    target = decoder.target

    def given(shift: float) -> Any:
        """Four likely tokens; the one at the edge is kept or not, as `shift` says."""
        probabilities = {
            "top_p": [0.35, 0.25 + shift, 0.22, 0.18 - shift],
            "min_p": [0.7, 0.21 - shift, 0.05, 0.04],
            "top_k": [0.3, 0.3, 0.2, 0.2 + shift],
        }[next(iter(truncation))]

        def forward(tokens: Any, cache: Any, **options: Any) -> Any:
            out = original(tokens, cache, **options)
            row = torch.full_like(out.logits, -40.0)
            row[-1, :4] = torch.tensor(probabilities).log()
            out.logits = row
            return out

        return forward

    original = target.forward
    found = {}
    for shift in (-1e-5, 1e-5, 0.03):
        monkeypatch.setattr(target, "forward", given(shift))
        found[shift] = {
            seed: decoder.generate(PROMPT, config.with_changes(seed=seed)).token_ids
            for seed in range(60)
        }
    differing = [seed for seed in range(60) if found[-1e-5][seed] != found[1e-5][seed]]
    assert differing, "the token at the edge was never drawn"
    for seed in differing:
        seeded = config.with_changes(seed=seed)
        for run, plain in ((-1e-5, 1e-5), (1e-5, -1e-5)):
            monkeypatch.setattr(target, "forward", given(plain))
            divergences = rescore(target, PROMPT, found[run][seed], seeded)
            assert len(divergences) == 1
            assert first_real(divergences) is None
    # Far from the edge it is one.
    monkeypatch.setattr(target, "forward", given(0.03))
    for seed in range(60):
        if found[-1e-5][seed] != found[0.03][seed]:
            seeded = config.with_changes(seed=seed)
            assert first_real(rescore(target, PROMPT, found[-1e-5][seed], seeded))


def test_a_long_prompt_is_rescored_in_chunks(monkeypatch: Any) -> None:
    decoder = tiny.trained("tied")
    monkeypatch.setattr("dartree_core.engine.rescore.PREFILL_CHUNK", 16)
    prompt = [(13 * i) % 300 for i in range(50)]
    config = DecodeConfig(max_new_tokens=8).with_changes(budget=8)
    ids = decoder.generate(prompt, config).token_ids
    forward, rows = decoder.target.forward, []

    def counted(tokens: Any, cache: Any, **options: Any) -> Any:
        rows.append(len(tokens))
        return forward(tokens, cache, **options)

    monkeypatch.setattr(decoder.target, "forward", counted)
    assert rescore(decoder.target, prompt, ids, config) == []
    assert rows[:4] == [16, 16, 16, 2]
    assert set(rows[4:]) == {1}

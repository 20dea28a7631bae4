"""Every promised family of targets: exact with every tree, on every path, over several turns."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from dartree_core.config import DecodeConfig, TreeConfig
from dartree_core.engine import Decoder
from dartree_core.models import Target
from dartree_core.models.lean import LeanTarget
from dartree_core.models.selfcheck import check_rows, row_errors
from tests.core import families, tiny

LENGTH = 16
GREEDY = DecodeConfig(tree=TreeConfig(budget=24, width=6), max_new_tokens=LENGTH)
SAMPLED = GREEDY.with_changes(
    temperature=0.9, top_k=30, top_p=0.95, min_p=0.01, repetition_penalty=1.2, seed=4
)
CONFIGS = {"greedy": GREEDY, "sampled": SAMPLED}
PATHS = [*((name, False) for name in families.FAMILIES), *((name, True) for name in families.LEAN)]


@functools.cache
def plain(name: str, kind: str, prompt: tuple[int, ...]) -> list[int]:
    """The general path, decoding plainly in a fresh session."""
    config = CONFIGS[kind].with_changes(method="ar")
    return list(Decoder(families.target(name)).generate(list(prompt), config).token_ids)


def guessing(name: str, kind: str, *, lean: bool = False) -> Decoder:
    """A decoder whose drafter has the true token among its best three, seldom first."""
    target = families.target(name, lean=lean)
    drafter = tiny.headless(target)
    answer = plain(name, kind, tuple(tiny.PROMPT))
    drafter.opinion = tiny.vaguely_right([*tiny.PROMPT, *answer])
    return Decoder(target, drafter)


@pytest.mark.parametrize("name", families.FAMILIES)
def test_each_row_is_what_it_says(name: str) -> None:
    family = families.FAMILIES[name]
    target = families.target(name)
    model: Any = target.model
    assert type(model).__name__ == family.model
    assert model.config._attn_implementation == ("eager" if family.eager else "sdpa")
    assert isinstance(families.target(name, lean=True), LeanTarget) == family.lean
    if family.window:
        assert family.window < len(tiny.PROMPT)
        tokens = torch.tensor(tiny.PROMPT)
        unlimited = Target(target.model)
        unlimited._window = 1000
        seen = target.forward(tokens, target.new_cache()).logits[-1]
        other = unlimited.forward(tokens, unlimited.new_cache()).logits[-1]
        assert not torch.allclose(seen, other, atol=1e-2), "the window changes nothing"


@pytest.mark.parametrize("name", families.FAMILIES)
def test_plain_decoding_is_that_of_transformers(name: str) -> None:
    expected = tiny.greedy_transformers(families.target(name), tiny.PROMPT, LENGTH)
    assert plain(name, "greedy", tuple(tiny.PROMPT)) == expected


@pytest.mark.parametrize(
    ("method", "kind"),
    [*((method, "greedy") for method in tiny.TREES), ("dartree", "sampled"), ("ddtree", "sampled")],
)
@pytest.mark.parametrize(("name", "lean"), PATHS)
def test_every_tree_says_what_plain_decoding_says(
    name: str, lean: bool, method: Any, kind: str
) -> None:
    """Prompt and answer reach past every window; accepted rows lie scattered."""
    decoder = guessing(name, kind, lean=lean)
    config = CONFIGS[kind].with_changes(method=method)
    found = tiny.events(decoder, tiny.PROMPT, config)
    assert list(tiny.finish(found).token_ids) == plain(name, kind, tuple(tiny.PROMPT))
    paths = [e.accepted for e in tiny.rounds(found)]
    assert sum(len(path) - 1 for path in paths) > 0
    assert any(list(path) != list(range(len(path))) for path in paths), "no scattered rows"


@pytest.mark.parametrize("method", ["dflash", "domino"])
@pytest.mark.parametrize("name", families.FAMILIES)
def test_chains_with_a_random_drafter(name: str, method: Any) -> None:
    target = families.target(name)
    decoder = Decoder(target, tiny.drafter(target))
    found = decoder.generate(tiny.PROMPT, GREEDY.with_changes(method=method))
    assert list(found.token_ids) == plain(name, "greedy", tuple(tiny.PROMPT))


@pytest.mark.parametrize(("name", "lean"), PATHS)
def test_a_later_turn_reuses_the_cache_and_says_the_same(name: str, lean: bool) -> None:
    decoder = guessing(name, "greedy", lean=lean)
    session = decoder.session()
    first = decoder.generate(tiny.PROMPT, GREEDY, session=session)
    follow_up = [*tiny.PROMPT, *list(first.token_ids)[:-4], 7, 1]
    found = tiny.events(decoder, follow_up, GREEDY, session=session)
    (prefill,) = [e for e in found if type(e).__name__ == "PrefillDone"]
    assert prefill.reused_tokens >= len(follow_up) - 2
    assert list(tiny.finish(found).token_ids) == plain(name, "greedy", tuple(follow_up))


@pytest.mark.parametrize("name", families.FAMILIES)
def test_rows_of_a_tree_are_independent(name: str) -> None:
    target = families.target(name)
    assert check_rows(target) == ()
    errors = row_errors(target)
    assert max(errors.chain, errors.tree) < 1e-4


@pytest.mark.parametrize("name", families.FAMILIES)
def test_features_and_tables_are_the_models_own(name: str) -> None:
    """What a drafter reads: layer outputs, and embeddings as the first layer sees them."""
    target = families.target(name)
    model: Any = target.model
    tokens = torch.tensor(tiny.PROMPT)
    with torch.inference_mode():
        hidden = model(tokens[None], output_hidden_states=True).hidden_states
        logits = model.get_output_embeddings()(hidden[-1][0])
    found = target.forward(tokens, target.new_cache(), taps=(0, 2)).features
    assert found is not None
    torch.testing.assert_close(found, torch.cat((hidden[1][0], hidden[3][0]), -1))
    if name != "gpt2":  # adds positions to what its table says
        torch.testing.assert_close(target.embed(tokens), hidden[0][0])
    torch.testing.assert_close(hidden[-1][0] @ target.output_weight.T, logits)

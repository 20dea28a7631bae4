"""Whole generations: output ids, acceptance lengths, and the first rounds' trees."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from dartree_core.config import DecodeConfig
from dartree_core.events import RoundDone, TreeVerified, TurnFinished
from tests.conformance import recorded
from tests.conformance.compare import assert_same_tree, verified_columns

DARTREE = [
    pytest.param(path, i, id=f"{path.name.split('.')[0]}-{i}")
    for path in recorded.files("generate/dartree_pair*.json*")
    for i in range(len(recorded.read(path)["records"]))
]
CHAINS = [
    pytest.param(path, i, id=f"{path.name.split('.')[0]}-{i}")
    for path in recorded.files("generate/chains_pair*.json*")
    for i in range(len(recorded.read(path)["records"]))
]


@pytest.mark.parametrize(("path", "index"), DARTREE)
def test_dartree(path: Any, index: int) -> None:
    data = recorded.read(path)
    record = data["records"][index]
    prompt = data["prompts"][str(record["prompt"])]
    config = recorded.decode_config(record["config"], max_new_tokens=len(record["output_ids"]))
    rounds = check_run(data["pair"], prompt, config, record)
    heights = [r.tree.height for r in rounds]
    assert heights == record["tree_heights"][: len(heights)]
    check_first_rounds(data["pair"], prompt, config, record["rounds"])


@pytest.mark.parametrize("path", recorded.files("generate/dartree_pair*.json*"), ids=str)
def test_plain_decoding(path: Any) -> None:
    data = recorded.read(path)
    for name, prompt in data["prompts"].items():
        expected = data["ar_output_ids"][name]
        config = DecodeConfig(method="ar", max_new_tokens=len(expected))
        result = recorded.decoder(data["pair"]).generate(prompt, config)
        assert result.token_ids == expected, f"prompt {name}"


@pytest.mark.parametrize(("path", "index"), CHAINS)
@pytest.mark.parametrize("method", ["domino", "dflash"])
def test_chain(path: Any, index: int, method: Any) -> None:
    data = recorded.read(path)
    record = data["records"][index]
    if method not in record:
        pytest.skip(f"no {method} recorded")
    prompt = data["prompts"][str(record["prompt"])]
    config = DecodeConfig(method=method, max_new_tokens=len(record[method]["output_ids"]))
    rounds = check_run(data["pair"], prompt, config, record[method])
    for ours, verify_ids in zip(rounds, record[method]["first_rounds_verify_ids"], strict=False):
        assert ours.tree.token == verify_ids


@pytest.mark.parametrize(("path", "index"), CHAINS)
def test_ddtree(path: Any, index: int) -> None:
    data = recorded.read(path)
    record = data["records"][index]
    if "ddtree" not in record:
        pytest.skip("no ddtree recorded")
    prompt = data["prompts"][str(record["prompt"])]
    for budget, expected in record["ddtree"].items():
        config = DecodeConfig(method="ddtree", max_new_tokens=len(expected["output_ids"]))
        config = config.with_changes(budget=int(budget))
        rounds = check_run(data["pair"], prompt, config, expected)
        for ours, theirs in zip(rounds, expected["rounds"], strict=False):
            tokens, parents, depths, scores = verified_columns(ours)
            # No margins are recorded here: our own scores say where rounding decides the order.
            gaps = [a - b for a, b in itertools.pairwise(scores)]
            assert recorded.paths(tokens, parents) == recorded.paths(
                theirs["tokens"], theirs["parents"]
            )
            if min(gaps, default=1.0) >= recorded.LOOSE_ORDER:
                assert (tokens, parents) == (theirs["tokens"], theirs["parents"])
                assert depths == theirs["depths"]
                assert ours.accepted == theirs["accepted"]


def check_run(
    pair: str, prompt: list[int], config: DecodeConfig, expected: dict[str, Any]
) -> list[RoundDone]:
    """Ids must match to the last; acceptance as long as the limit does not shorten the tree.

    The recorded runs draft past the limit and trim afterwards; ours never drafts deeper than the
    answer can still grow. Returns the comparable rounds.
    """
    slots = recorded.drafter(pair).spec.num_slots()
    emitted, comparable = 1, []
    for event in recorded.decoder(pair).stream(prompt, config):
        if isinstance(event, RoundDone):
            if emitted + slots < config.max_new_tokens:
                comparable.append(event)
            emitted += len(event.tokens)
        if isinstance(event, TurnFinished):
            assert event.token_ids == expected["output_ids"]
    lengths = [len(r.accepted) for r in comparable]
    assert lengths == expected["acceptance_lengths"][: len(lengths)]
    assert lengths
    return comparable


def check_first_rounds(
    pair: str, prompt: list[int], config: DecodeConfig, expected: list[dict[str, Any]]
) -> None:
    """Trees, the target's choices and the accepted path of the recorded rounds."""
    stream = recorded.decoder(pair).stream(prompt, config.with_changes(stages=True))
    slots = recorded.drafter(pair).spec.num_slots()
    emitted = 1
    verified: list[TreeVerified] = []
    done = 0
    for event in stream:
        if isinstance(event, TreeVerified):
            verified.append(event)
        if not isinstance(event, RoundDone):
            continue
        if done == len(expected) or emitted + slots >= config.max_new_tokens:
            break
        theirs = expected[done]
        assert event.position == theirs["start"]
        assert event.tree.token[0] == theirs["root"]
        if assert_same_tree(event, theirs):
            ids = [i for i, kept in enumerate(event.tree.kept) if kept]
            assert list(verified[-1].choice) == theirs["target_argmax"]
            assert [ids.index(i) for i in event.accepted] == theirs["accepted"]
        assert event.bonus == theirs["next_token"]
        emitted += len(event.tokens)
        done += 1
    stream.close()
    assert done

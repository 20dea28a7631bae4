"""Grafting: what enters the tree, at which score, and when it stays away."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dartree_core.config import CHAINS, PRESETS, DecodeConfig, Method, TreeConfig
from dartree_core.draft import BlockDraft, Supertree
from dartree_core.draft.builders import BUILDERS
from dartree_core.draft.graft import REACH, Grafter
from dartree_core.draft.heads import CorrectionHead, NoHead
from dartree_core.draft.lookup import SuffixIndex
from dartree_core.draft.opinion import Opinion
from dartree_core.draft.shares import CEILING, SEEN, Shares
from dartree_core.draft.supertree import finish
from dartree_core.draft.vocabulary import DraftVocabulary
from dartree_core.engine import Decoder
from dartree_core.engine.budget import RoundPlan
from dartree_core.events import DepthExpanded, RoundDone, TreePruned
from tests.core import tiny

VOCAB, SLOTS, WIDTH = 32, 4, 8


def embed(ids: torch.Tensor) -> torch.Tensor:
    table = torch.randn(VOCAB, WIDTH, generator=torch.Generator().manual_seed(3))
    return table[ids]


def block(seed: int = 0, vocabulary: DraftVocabulary | None = None) -> BlockDraft:
    dice = torch.Generator().manual_seed(seed)
    vocabulary = vocabulary or DraftVocabulary(VOCAB)
    logits = torch.randn(SLOTS, vocabulary.size, generator=dice) * 2
    return BlockDraft(torch.randn(SLOTS, WIDTH, generator=dice), logits, vocabulary)


def grown(
    draft: BlockDraft, method: Method, budget: int, head: CorrectionHead | None = None
) -> tuple[Supertree, Opinion]:
    head = head or NoHead()
    tree = TreeConfig(budget=budget, width=3, candidates=6)
    root = torch.tensor([1])
    built = finish(BUILDERS[method](draft, head, root, embed, tree, SLOTS))
    return built, Opinion(built, draft, head, embed, method)


def indexed(text: list[int]) -> SuffixIndex:
    index = SuffixIndex()
    index.extend(text)
    return index


def paths(tree: Supertree) -> dict[tuple[int, ...], int]:
    """Every node by its path of tokens."""
    token, parent = tree.token.tolist(), tree.parent.tolist()
    found: dict[int, tuple[int, ...]] = {0: ()}
    for node in range(1, len(token)):
        found[node] = (*found[parent[node]], token[node])
    return {path: node for node, path in found.items()}


@settings(max_examples=60)
@given(
    st.integers(0, 50),
    st.lists(st.integers(0, 7), min_size=8, max_size=40),
    st.sampled_from(tiny.TREES),
    st.integers(1, 24),
    st.integers(1, 40),
)
def test_a_grafted_tree_is_a_tree(
    seed: int, text: list[int], method: Method, budget: int, reach: int
) -> None:
    tree, opinion = grown(block(seed), method, budget)
    before = paths(tree)
    joined = Grafter().graft(tree, indexed([*text, 1]), opinion, limit=budget, reach=reach)
    after = paths(joined)
    assert len(after) == len(joined.token), "a child is there twice"
    assert all(after[path] == node for path, node in before.items()), "ids of old nodes changed"
    assert len(joined.kept) - 1 <= budget
    kept = set(joined.kept.tolist())
    assert all(int(joined.parent[i]) in kept for i in kept if i)
    assert int(joined.depth.max()) <= max(int(tree.depth.max()), min(reach, REACH))
    sums = joined.path_logp[joined.parent[1:]] + joined.head_logp[1:]
    torch.testing.assert_close(joined.path_logp[1:], sums)
    assert (joined.head_logp[1:] <= 0).all()
    assert joined.token.dtype == tree.token.dtype
    assert joined.path_logp.dtype == tree.path_logp.dtype
    for parent in {int(p) for p in joined.parent[1:]}:
        assert float(joined.head_logp[1:][joined.parent[1:] == parent].exp().sum()) < 1.001


COPY = [9, 1, 20, 21, 22, 23, 24, 25, 26, 9, 1]
"""Ends as it began: what followed once is 20, 21, ..."""


def test_what_followed_once_becomes_a_path_deeper_than_the_block() -> None:
    grafter = Grafter()
    for _ in range(40):
        grafter._seen.learn(2, True)
        grafter._lacked.learn(2, True)
    tree, opinion = grown(block(), "dartree", 16)
    joined = grafter.graft(tree, indexed(COPY), opinion, limit=16, reach=30)
    found = paths(joined)
    assert (20, 21, 22, 23, 24, 25, 26) in found
    assert found[(20, 21, 22, 23, 24, 25)] in joined.kept.tolist()


def test_reach_and_budget_hold_for_grafts() -> None:
    tree, opinion = grown(block(), "dartree", 16)
    joined = Grafter().graft(tree, indexed(COPY), opinion, limit=16, reach=2)
    assert int(joined.depth.max()) == SLOTS
    assert (20, 21, 22) not in paths(joined)


def test_matches_known_to_be_wrong_change_nothing() -> None:
    grafter = Grafter()
    for _ in range(400):
        grafter._seen.learn(2, False)
        grafter._lacked.learn(2, False)
        grafter._second.learn(2, False)
    tree, opinion = grown(block(), "dartree", 16)
    assert grafter.graft(tree, indexed(COPY), opinion, limit=16, reach=30) is tree
    assert not grafter.promising(indexed(COPY))


def test_without_a_match_the_tree_is_left_alone() -> None:
    tree, opinion = grown(block(), "ddtree", 16)
    assert Grafter().graft(tree, indexed([4, 5, 6, 1]), opinion, limit=16, reach=9) is tree


def test_a_token_the_drafter_proposed_is_raised_and_its_siblings_yield() -> None:
    tree, opinion = grown(block(), "ddtree", 16)
    first = int(tree.token[1])
    children = [i for i in range(1, len(tree.token)) if int(tree.parent[i]) == 0]
    grafter = Grafter()
    for _ in range(400):
        grafter._seen.learn(2, True)
    text = [9, 1, first, 30, 9, 1]
    joined = grafter.graft(tree, indexed(text), opinion, limit=16, reach=1)
    own = math.exp(float(tree.head_logp[1]))
    assert math.exp(float(joined.head_logp[1])) == pytest.approx(CEILING)
    for child in children[1:]:
        was, now = (math.exp(float(t.head_logp[child])) for t in (tree, joined))
        assert now == pytest.approx(was * (1 - CEILING) / (1 - own))


def test_a_surer_drafter_keeps_its_word() -> None:
    draft = block()
    draft.base_logits[0, 20] = 30.0
    tree, opinion = grown(draft, "dartree", 16)
    joined = Grafter().graft(tree, indexed(COPY), opinion, limit=16, reach=1)
    assert joined is tree


def test_a_copy_is_no_matter_of_the_drafters_confidence() -> None:
    tree, opinion = grown(block(), "ddtree", 16)
    tree.confidence = -0.5 * tree.depth.float()
    first = int(tree.token[1])
    grafter = Grafter()
    for _ in range(400):
        grafter._seen.learn(2, True)
    joined = grafter.graft(tree, indexed([9, 1, first, 30, 9, 1]), opinion, limit=16, reach=2)
    found, before = paths(joined), paths(tree)
    assert joined.confidence is not None
    assert len(joined.confidence) == len(joined.token)
    assert float(joined.confidence[found[(first,)]]) == 0.0
    assert float(joined.confidence[found[(first, 30)]]) == 0.0
    for path in before:
        assert float(joined.confidence[found[path]]) == -0.5 * (len(path) - (path[:1] == (first,)))


# Scores of what nobody proposed


@pytest.mark.parametrize("method", tiny.TREES)
@pytest.mark.parametrize("pair", tiny.TRAINED)
def test_opinion_says_of_proposed_tokens_what_the_builder_said(pair: str, method: Method) -> None:
    """So it says of others what the builder would have said."""
    decoder = tiny.trained(pair)
    assert decoder.drafter is not None
    drafter, target = decoder.drafter, decoder.target
    ids = torch.tensor([7, 100, 31, 8, 250, 3])
    features = target.forward(ids, target.new_cache(), taps=drafter.taps).features
    assert features is not None
    cache = drafter.new_cache()
    drafter.extend(features[:-1], cache)
    draft = drafter.draft(ids[-1:], cache)
    config = TreeConfig(budget=24, width=6)
    steps = BUILDERS[method](draft, drafter.head, ids[-1:], target.embed, config, draft.num_slots)
    tree = finish(steps)
    opinion = Opinion(tree, draft, drafter.head, target.embed, method)
    for path, node in itertools.islice(paths(tree).items(), 1, 12):
        own, draft_logp = opinion.of(path, len(path) - 1)[0]
        assert own == pytest.approx(float(tree.head_logp[node]), abs=1e-4)
        assert draft_logp == pytest.approx(float(tree.draft_logp[node]), abs=1e-4)


def test_opinion_of_tokens_outside_the_draft_vocabulary_and_behind_the_block() -> None:
    vocabulary = DraftVocabulary(6, torch.tensor([1, 2, 3, 4, 5, 6]))
    _, opinion = grown(block(0, vocabulary), "dartree", 8)
    scores = opinion.of([2, 30, 3, 4, 5, 6], 0)
    assert len(scores) == SLOTS
    assert scores[1] == (-math.inf, -math.inf)
    assert all(-math.inf < own <= 0 for i, (own, _) in enumerate(scores) if i != 1)
    assert opinion.of([2, 3, 4, 5, 6], SLOTS) == []


def test_a_graft_may_use_tokens_the_drafter_lacks() -> None:
    vocabulary = DraftVocabulary(6, torch.tensor([1, 2, 3, 4, 5, 6]))
    tree, opinion = grown(block(0, vocabulary), "dartree", 8)
    joined = Grafter().graft(tree, indexed(COPY), opinion, limit=8, reach=9)
    node = paths(joined)[(20,)]
    share = Grafter()._lacked.share(2)
    assert float(joined.head_logp[node]) == pytest.approx(math.log(share))


# Learning


def test_shares_start_at_the_prior_and_follow_what_happens() -> None:
    shares = Shares(SEEN)
    assert [shares.share(n) for n in (2, 3, 4, 5, 8, 12, 40)] == list(SEEN)
    for _ in range(300):
        shares.learn(3, True)
    assert shares.share(3) == CEILING
    assert shares.share(4) == SEEN[2]
    for _ in range(300):
        shares.learn(3, False)
    assert shares.share(3) < 0.05


def test_what_the_drafter_lacked_is_judged_by_what_was_emitted() -> None:
    def after(emitted: list[int]) -> float:
        grafter, index = Grafter(), indexed(COPY)
        tree, opinion = grown(block(), "dartree", 16)
        assert (20,) not in paths(tree)
        grafter.graft(tree, index, opinion, limit=16, reach=9)
        grafter.learn(index, emitted)
        assert index.ids == [*COPY, *emitted]
        return grafter._lacked.share(2)

    prior = Grafter()._lacked.share(2)
    assert after([20, 21]) > prior
    assert after([19]) < prior


def test_every_token_teaches_whether_or_not_it_was_grafted() -> None:
    grafter, index = Grafter(), indexed([1, 2, 3])
    before = grafter._seen.share(20)
    for _ in range(60):
        grafter.learn(index, [1, 2, 3])
    assert grafter._seen.share(20) > before
    assert grafter.promising(index)


# In decoding


@pytest.mark.parametrize("method", tiny.TREES)
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.7, "top_p": 0.9}], ids=str)
@pytest.mark.parametrize("pair", ["tied", "untied-shifted"])
def test_the_text_is_plain_decodings(pair: str, sampling: dict[str, float], method: Method) -> None:
    decoder = tiny.trained(pair)
    prompts = ([7, 100, 31, 8, 250] * 3, [3, 9, 27, 81, 3, 9, 27])
    for prompt, budget in zip(prompts, (4, 24), strict=True):
        plain = DecodeConfig(method="ar", max_new_tokens=32).with_changes(seed=budget, **sampling)
        config = plain.with_changes(method=method, budget=budget, graft=True)
        expected = decoder.generate(prompt, plain).token_ids
        assert decoder.generate(prompt, config).token_ids == expected


def test_a_looping_text_is_copied_deeper_than_the_block() -> None:
    """A drafter that is always wrong, and a target that repeats itself: grafts alone are right."""
    target, prompt = tiny.enumerable().target, [5, 5]
    drafter = tiny.headless(target, vocab_size=tiny.FEW, mask_token_id=0, block_size=4)
    decoder = Decoder(target, drafter)
    config = DecodeConfig(method="dartree", max_new_tokens=60).with_changes(budget=16)
    answer = decoder.generate(prompt, config.with_changes(method="ar")).token_ids
    drafter.opinion = tiny.always_wrong([*prompt, *answer])
    without = decoder.generate(prompt, config)
    grafted = decoder.generate(prompt, config.with_changes(graft=True))
    assert grafted.token_ids == without.token_ids == answer
    assert without.metrics["mean_acceptance_length"] < 1.1
    assert grafted.metrics["mean_acceptance_length"] > 4.0


def test_nobody_expanded_a_copied_node() -> None:
    """Where a copy ends the path, the tree lacks the bonus token because nothing was tried."""
    target, prompt = tiny.enumerable().target, [5, 5]
    drafter = tiny.headless(target, vocab_size=tiny.FEW, mask_token_id=0, block_size=4)
    decoder = Decoder(target, drafter)
    config = DecodeConfig(method="dartree", max_new_tokens=60).with_changes(budget=16, graft=True)
    answer = decoder.generate(prompt, config.with_changes(method="ar")).token_ids
    drafter.opinion = tiny.always_wrong([*prompt, *answer])
    ends = [
        done
        for done in decoder.stream(prompt, config.with_changes(detail="full"))
        if isinstance(done, RoundDone) and done.bonus is not None and done.accepted[-1]
    ]
    assert any(done.tree.draft_rank[done.accepted[-1]] == 0 for done in ends)
    for done in ends:
        if done.tree.draft_rank[done.accepted[-1]] == 0:
            assert done.bonus_fate in ("not_expanded", "final_pruned")


def test_a_conversation_goes_on_from_what_is_indexed() -> None:
    decoder = tiny.trained("untied-shifted")
    config = DecodeConfig(max_new_tokens=24).with_changes(budget=12, graft=True)
    session, prompt = decoder.session(), [7, 100, 31, 8, 250]
    for turn in range(3):
        plain = decoder.generate(prompt, config.with_changes(method="ar")).token_ids
        assert decoder.generate(prompt, config, session=session).token_ids == plain
        assert session.lookup.ids == [*prompt, *plain]
        prompt = [*prompt, *plain, 31, 8] if turn == 0 else [31, 8, *plain[:9]]


class Pausing:
    """A budget that sees no sense in drafting."""

    def __init__(self, affordable: bool) -> None:
        self.affordable = affordable

    def __call__(self, *anything: object) -> Pausing:
        return self

    def plan(self) -> RoundPlan:
        return RoundPlan(draft=False, note="plain: a pause", affordable=self.affordable)

    def size(self, path_logp: list[float]) -> tuple[int, float]:
        return len(path_logp), 1.0

    def learn(self, *anything: object, **more: object) -> None: ...

    def remember(self) -> None: ...


@pytest.mark.parametrize("affordable", [True, False])
def test_a_promising_copy_ends_a_pause_in_drafting(
    affordable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dartree_core.engine import decoder as module

    monkeypatch.setattr(module, "TurnBudgets", lambda *_: Pausing(affordable))
    decoder = Decoder(tiny.enumerable().target, tiny.enumerable().drafter)
    config = DecodeConfig(tree=PRESETS["auto"], max_new_tokens=60)
    done = [e for e in decoder.stream([5, 5], config) if isinstance(e, RoundDone)]
    drafted = [e for e in done if len(e.tree) > 1]
    assert bool(drafted) == affordable
    assert all((e.note == "") == (e in drafted) for e in done)


@pytest.mark.parametrize("method", CHAINS)
def test_chains_are_not_grafted(method: Method) -> None:
    decoder = tiny.trained("tied")
    config = DecodeConfig(method=method, max_new_tokens=24)
    rounds = [
        [e.tree.token for e in decoder.stream([7, 100, 31, 8, 250] * 2, c) if hasattr(e, "tree")]
        for c in (config, config.with_changes(graft=True))
    ]
    assert rounds[0] == rounds[1]


def test_on_the_command_line_grafts_come_with_budget_auto() -> None:
    from dartree_core.cli.options import decode_config

    decoder = tiny.trained("tied")
    assert decode_config(decoder).tree == PRESETS["auto"]
    assert decode_config(decoder, budget="auto", graft=None).tree.graft
    assert not decode_config(decoder, budget="16").tree.graft
    assert decode_config(decoder, budget="16", graft=True).tree.graft
    assert not decode_config(decoder, graft=False).tree.graft
    assert not PRESETS["paper"].graft


def test_off_by_default_and_published_trees_are_untouched() -> None:
    assert not TreeConfig().graft
    decoder = tiny.trained("tied")
    prompt = [7, 100, 31, 8, 250] * 3
    config = DecodeConfig(max_new_tokens=16).with_changes(budget=12)

    def trees() -> list[tuple[list[int], list[float]]]:
        done = [e for e in decoder.stream(prompt, config) if isinstance(e, RoundDone)]
        return [(list(e.tree.token), list(e.tree.path_logp)) for e in done]

    before = trees()
    decoder.generate(prompt, config.with_changes(graft=True))
    assert trees() == before


def test_stage_events_tell_of_every_node_at_its_final_score() -> None:
    decoder = tiny.trained("untied-shifted")
    config = DecodeConfig(max_new_tokens=60, stages=True, detail="full")
    config = config.with_changes(budget=16, graft=True)
    grafts = 0
    nodes: dict[int, float] = {}
    for event in decoder.stream([7, 100, 31, 8, 250] * 3, config):
        if isinstance(event, DepthExpanded):
            nodes |= dict(zip(event.node, event.path_logp, strict=True))
        elif isinstance(event, TreePruned):
            assert set(event.kept) <= {0, *nodes}
        elif isinstance(event, RoundDone):
            assert list(event.tree.problems()) == []
            assert set(nodes) == set(range(1, len(event.tree)))
            told = [nodes[i] for i in range(1, len(event.tree))]
            assert told == pytest.approx(list(event.tree.path_logp[1:]), abs=1e-5)
            grafts += max(event.tree.depth) > 8
            nodes = {}
    assert grafts

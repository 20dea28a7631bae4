"""Recorded tensors of the first two rounds, stage by stage, down to the target's logits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from dartree_core.config import SamplingConfig
from dartree_core.draft.builders import build_dartree
from dartree_core.draft.supertree import Supertree
from dartree_core.engine.sampling import Chooser
from dartree_core.engine.verify import VerifyPlan, walk
from tests.conformance import recorded

CASES = [pytest.param(path, id=path.stem) for path in recorded.files("tensors/pair*_prompt*.npz")]
KNOBS = {"budget": 16, "width": 12, "candidates": 64, "expansion_k": 64, "depth_bonus": -0.2}
"""The one configuration of all tensor files (README)."""
CLOSE = {"atol": 2e-4, "rtol": 1e-4}


@pytest.mark.parametrize("path", CASES)
def test_two_rounds(path: Any) -> None:
    found = re.fullmatch(r"pair(.+)_prompt(.+)", path.stem)
    assert found is not None
    pair, prompt = found.groups()
    ids = prompt_ids(pair, prompt)
    tensors = np.load(path)
    drafter = recorded.drafter(pair)
    target, head = drafter.target, drafter.head
    session = recorded.decoder(pair).session()
    session.begin(ids, drafting=True)
    out = target.forward(torch.tensor(ids), session.cache, taps=drafter.taps, last_only=True)
    session.commit(ids, torch.arange(len(ids)), out.features)
    root = out.logits[-1:].argmax(-1)
    rounds = sorted({name.split("_")[0] for name in tensors.files})
    for name in rounds:
        want = {k.removeprefix(f"{name}_"): tensors[k] for k in tensors.files if k.startswith(name)}
        assert session.pending.joined is not None
        np.testing.assert_allclose(session.pending.joined, want["target_hidden"], **CLOSE)
        session.encode_pending()
        assert session.draft_cache is not None
        start = session.cache.length
        assert session.draft_cache.length == start
        block = drafter.draft(root, session.draft_cache)
        np.testing.assert_allclose(block.hidden, want["parallel_hiddens"], **CLOSE)
        check_top(block.base_logits, want["base_top8_vals"], want["base_top8_ids"])
        shared = head.prepare(block.hidden)
        np.testing.assert_allclose(shared, want["z_parts"], **CLOSE)
        checksum = [shared.double().sum(), shared.double().abs().sum()]
        np.testing.assert_allclose(checksum, want["z_checksum"], atol=1e-2)
        tree = build_dartree(block, head, root, target.embed, **KNOBS)  # type: ignore[arg-type]
        states = node_states(drafter, tree)
        np.testing.assert_allclose(states[0], want["root_gru"], **CLOSE)
        np.testing.assert_allclose(states, want["node_gru"], **CLOSE)
        check_correction(drafter, block, shared, states, want)
        plan = VerifyPlan.of(tree, start)
        assert plan.token.tolist() == want["verify_input_ids"].tolist()
        assert plan.position.tolist() == want["verify_position_ids"].tolist()
        past = torch.ones(len(plan.token), start, dtype=torch.bool)
        assert torch.cat((past, plan.visible), 1).tolist() == want["verify_visible"].tolist()
        out = target.forward(
            plan.token,
            session.cache,
            positions=plan.position,
            visible=plan.visible,
            taps=drafter.taps,
        )
        check_top(out.logits, want["target_top8_vals"], want["target_top8_ids"])
        chooser = Chooser(SamplingConfig(), ids, target.device)
        verdict = walk(plan, out.logits, chooser)
        session.commit([int(root), *verdict.tokens], torch.tensor(verdict.accepted), out.features)
        root = torch.tensor([verdict.bonus])


def prompt_ids(pair: str, prompt: str) -> list[int]:
    for path in recorded.files(f"generate/*_pair{pair}.json*"):
        prompts = recorded.read(path)["prompts"]
        if prompt in prompts:
            ids: list[int] = prompts[prompt]
            return ids
    pytest.skip(f"prompt {prompt} of pair {pair} is recorded nowhere")


def node_states(drafter: Any, tree: Supertree) -> torch.Tensor:
    """GRU state after every supertree node, the root's first, `[N + 1, G]`."""
    head, embed = drafter.head, drafter.target.embed
    states = head.root_state(tree.token[:1], embed(tree.token[:1]))
    for i in range(1, tree.num_nodes + 1):
        token = tree.token[i : i + 1]
        parent = states[tree.parent[i : i + 1]]
        states = torch.cat((states, head.advance(parent, token, embed(token))))
    return states


def check_top(logits: torch.Tensor, values: np.ndarray, ids: np.ndarray) -> None:
    """The recorded largest logits are ours too, at the recorded ids."""
    at = torch.from_numpy(ids.astype(np.int64))
    np.testing.assert_allclose(logits.gather(1, at), values, **CLOSE)
    np.testing.assert_allclose(logits.topk(ids.shape[1]).values, values, **CLOSE)


def check_correction(
    drafter: Any,
    block: Any,
    shared: torch.Tensor,
    states: torch.Tensor,
    want: Mapping[str, np.ndarray],
) -> None:
    slot, node = int(want["corr_slot"]), int(want["corr_parent_node"])
    ids = torch.from_numpy(want["corr_cand_ids"].astype(np.int64))
    base = block.base_logits[slot, ids]
    np.testing.assert_allclose(base, want["corr_cand_base"], **CLOSE)
    logits = base + drafter.head.correct(shared[slot], states[node : node + 1], ids)[0]
    np.testing.assert_allclose(logits, want["corr_cand_logits"], **CLOSE)
    np.testing.assert_allclose(logits.logsumexp(0), want["corr_log_z"], **CLOSE)
    top = block.base_logits[slot].topk(len(ids)).indices
    assert set(top.tolist()) == set(ids.tolist())

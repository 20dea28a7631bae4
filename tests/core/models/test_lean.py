"""The lean path computes the function of the transformers model it took the weights of."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dartree_core.compiled import shares
from dartree_core.config import METHODS, DecodeConfig
from dartree_core.draft.supertree import ancestors
from dartree_core.engine import Decoder
from dartree_core.models import LeanTarget, device, kernels, load_target
from dartree_core.models.buckets import MOST_ROWS
from dartree_core.models.kernels import KERNELS, PANELS, candidates, has_fbgemm, named
from dartree_core.models.lean import LeanCache, supports
from dartree_core.models.target import Target
from tests.core import tiny

LEAN = ("llama", "qwen2-tied", "qwen3-padded")
TAPS = (0, 2)
CLOSE = {"atol": 2e-4, "rtol": 1e-4}


COMPILED = pytest.mark.parametrize("compiled", [False, True], ids=["tensors", "compiled"])


def needs_compiled_code() -> None:
    if not shares():
        pytest.skip("compiled code cannot share PyTorch's threads here")


def both(family: str, *, compiled: bool = False, **options: Any) -> tuple[Target, LeanTarget]:
    general = tiny.target(family)
    if compiled:
        needs_compiled_code()
        options["kernel"] = "panels-fp32"
    lean = LeanTarget(copy.deepcopy(general.model), **options)
    if compiled:
        lean.compile()
        assert "compiled" in lean.path
    return general, lean


def pass_both(
    general: Target, lean: LeanTarget, caches: list[Any], tokens: list[int], **options: Any
) -> None:
    """One pass through both; logits and tapped features must agree."""
    rows = torch.tensor(tokens)
    ours = lean.forward(rows, caches[1], taps=TAPS, **options)
    theirs = general.forward(rows, caches[0], taps=TAPS, **options)
    torch.testing.assert_close(ours.logits, theirs.logits, **CLOSE)
    torch.testing.assert_close(ours.features, theirs.features, **CLOSE)


@pytest.mark.parametrize("family", LEAN)
@COMPILED
@settings(max_examples=15)
@given(data=st.data())
def test_prefill_trees_and_steps_agree(family: str, compiled: bool, data: st.DataObject) -> None:
    general, lean = both(family, compiled=compiled)
    caches = [general.new_cache(), lean.new_cache()]
    ids = st.integers(0, tiny.VOCAB - 1)
    prompt = data.draw(st.lists(ids, min_size=1, max_size=12))
    pass_both(general, lean, caches, prompt)
    for cache in caches:
        cache.commit(torch.arange(len(prompt)))
    for _ in range(3):
        start = caches[0].length
        size = data.draw(st.integers(1, 9))
        parent = [-1, *(data.draw(st.integers(0, i - 1)) for i in range(1, size))]
        depth = [0]
        for p in parent[1:]:
            depth.append(depth[p] + 1)
        visible = ancestors(torch.tensor(parent))
        tokens = data.draw(st.lists(ids, min_size=size, max_size=size))
        position = start + torch.tensor(depth)
        pass_both(general, lean, caches, tokens, positions=position, visible=visible)
        node, path = data.draw(st.integers(0, size - 1)), []
        while node >= 0:
            path.insert(0, node)
            node = parent[node]
        for cache in caches:
            cache.commit(torch.tensor(path))


@pytest.mark.parametrize("family", LEAN)
@COMPILED
def test_one_row_of_many_is_enough(family: str, compiled: bool) -> None:
    general, lean = both(family, compiled=compiled)
    caches = [general.new_cache(), lean.new_cache()]
    pass_both(general, lean, caches, tiny.PROMPT, last_only=True)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("pair", ["tied", "untied"])
@COMPILED
def test_a_drafted_answer_is_the_general_paths_plain_answer(
    pair: str, method: Any, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = {"tied": "draft_tied_p1_s0", "untied": "draft_untied_p0_s1"}[pair]
    from dartree_core.draft import load_drafter

    folder = tiny.CHECKPOINTS
    options: dict[str, Any] = {"device": torch.device("cpu"), "dtype": torch.float32}
    if compiled:
        needs_compiled_code()
        monkeypatch.setattr(kernels, "choose", lambda weight, names, *rest: "panels-fp32")
    lean = load_target(folder / f"target_{pair}", lean=True, **options)
    assert isinstance(lean, LeanTarget)
    general = Decoder(load_target(folder / f"target_{pair}", **options))
    prompt = [7, 100, 31, 8, 250]
    plain = general.generate(prompt, DecodeConfig(method="ar", max_new_tokens=40))
    drafter = load_drafter(folder / name, lean, lean=True)
    if compiled:
        lean.compile()
        drafter.compile()
        assert "compiled" in lean.path
        assert "compiled" in drafter.path
    drafted = Decoder(lean, drafter)
    config = DecodeConfig(method=method, max_new_tokens=40)
    assert drafted.generate(prompt, config).token_ids == plain.token_ids


def test_what_the_lean_path_does_not_compute_stays_general() -> None:
    def config(family: str, **changes: Any) -> Any:
        found = copy.deepcopy(tiny.target(family).model.config)
        found.architectures = [type(tiny.target(family).model).__name__]
        for name, value in changes.items():
            setattr(found, name, value)
        return found

    assert all(supports(config(family)) for family in LEAN)
    for family in ("gemma3-sliding", "mistral-window", "mixtral", "qwen3-moe"):
        assert not supports(config(family)), family
    assert supports(config("mistral-window", sliding_window=None))
    assert not supports(config("llama", hidden_act="gelu"))
    assert not supports(config("llama", mlp_bias=True))
    assert not supports(config("llama", architectures=None))
    dynamic = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    assert not supports(config("llama", rope_parameters=dynamic))


@pytest.mark.parametrize("bfloat16", [False, True])
def test_auto_dtype_keeps_general_models_exact(
    bfloat16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the lean path 16-bit activations would be slow and coarse: float32 then."""
    if bfloat16 and not (shares() and kernels.has_bfloat16()):
        pytest.skip("this CPU multiplies no bfloat16")
    monkeypatch.setattr(device, "has_bfloat16", lambda: bfloat16)
    folder = tiny.CHECKPOINTS / "target_tied"
    general = load_target(folder, device=torch.device("cpu"), dtype=None)
    assert general.weight_dtype == general.dtype == torch.float32
    lean = load_target(folder, device=torch.device("cpu"), dtype=None, lean=True)
    assert lean.dtype == torch.float32
    half = torch.float16 if has_fbgemm() else torch.float32
    assert lean.weight_dtype == (torch.bfloat16 if bfloat16 else half)
    assert ("panels-bf16" in lean.path) is bfloat16


@pytest.mark.skipif(not has_fbgemm(), reason="this PyTorch has no FBGEMM")
def test_float16_weights_round_the_weights_and_nothing_else() -> None:
    general = tiny.target("llama")
    half = copy.deepcopy(general.model)
    with torch.no_grad():
        for module in half.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight.copy_(module.weight.half().float())
    oracle = tiny.wrap(half)
    lean = LeanTarget(copy.deepcopy(general.model), weights=torch.float16)
    pass_both(oracle, lean, [oracle.new_cache(), lean.new_cache()], tiny.PROMPT)


@pytest.mark.parametrize("name", sorted(KERNELS))
@pytest.mark.parametrize("bias", [False, True])
def test_kernels_multiply(name: str, bias: bool) -> None:
    if name == "fbgemm-fp16" and not has_fbgemm():
        pytest.skip("this PyTorch has no FBGEMM")
    if name in PANELS.values():
        needs_compiled_code()
    if name == "panels-bf16":
        pytest.skip("rounds rows: see the tests of compiled products")
    if name == "onednn" and name not in candidates(
        torch.device("cpu"), torch.float32, torch.float32
    ):
        pytest.skip("this PyTorch has no oneDNN")
    weight = torch.randn(24, 16).half().float()
    offset = torch.randn(24) if bias else None
    kernel = KERNELS[name](weight, offset)
    for rows in (1, 3, 17):
        x = torch.randn(rows, 16)
        torch.testing.assert_close(
            kernel(x), torch.nn.functional.linear(x, weight, offset), atol=1e-4, rtol=1e-4
        )


@pytest.mark.parametrize("bias", [False, True])
def test_the_rounding_kernel_is_exact_where_nothing_is_rounded(bias: bool) -> None:
    def whole(*shape: int) -> torch.Tensor:
        return torch.randint(-3, 4, shape).float()

    weight, offset = whole(24, 16), whole(24) if bias else None
    kernel = named("onednn-bf16")(weight, offset)
    for rows in (1, 3, 17):
        x = whole(rows, 16)  # sums stay below 256, which bfloat16 holds exactly
        found = kernel(x)
        assert found.dtype == torch.float32
        assert torch.equal(found, torch.nn.functional.linear(x, weight, offset))


def test_the_cache_keeps_committed_rows_as_it_grows() -> None:
    cache = LeanCache((2, 1, 4), torch.float32, torch.device("cpu"))
    cache.reserve(8)
    cache.data[..., :8, :] = torch.arange(8.0)[:, None]
    cache.commit(torch.tensor([0, 2, 5]))
    assert cache.data[1, 1, 0, :3, 0].tolist() == [0.0, 2.0, 5.0]
    before = cache.capacity
    cache.reserve(before + 1)
    assert cache.capacity > before
    assert cache.data[1, 1, 0, :3, 0].tolist() == [0.0, 2.0, 5.0]
    cache.crop(1)
    cache.crop(2)
    assert cache.length == 1
    assert cache.nbytes == cache.data.numel() * 4


@pytest.mark.parametrize("family", LEAN)
def test_a_compiled_row_is_computed_as_it_would_be_alone(family: str) -> None:
    _, lean = both(family, compiled=True)
    cache = lean.new_cache()
    lean.forward(torch.tensor(tiny.PROMPT), cache)
    cache.commit(torch.arange(len(tiny.PROMPT)))
    visible = torch.eye(5, dtype=torch.bool)
    visible[:, 0] = True
    tokens = torch.tensor([3, 9, 9, 30, 41])
    position = torch.tensor([8, 9, 9, 9, 9])
    many = lean.forward(tokens, cache, positions=position, visible=visible).logits
    for row in range(1, 5):
        alone = lean.forward(
            tokens[[0, row]], cache, positions=position[[0, row]], visible=visible[:2, :2]
        ).logits
        assert torch.equal(alone[1], many[row])
    assert torch.equal(many[1], many[2])


@pytest.mark.parametrize("length", [96, MOST_ROWS, MOST_ROWS + 72])
def test_steps_behind_a_long_prefill_agree(length: int) -> None:
    """A pass of many rows, the longest with tensor operations between products, then steps."""
    general, lean = both("qwen3-padded", compiled=True)
    caches = [general.new_cache(), lean.new_cache()]
    generator = torch.Generator().manual_seed(3)
    prompt = torch.randint(0, tiny.VOCAB, (length,), generator=generator).tolist()
    pass_both(general, lean, caches, prompt)
    for cache in caches:
        cache.commit(torch.arange(length))
    for step in range(3):
        pass_both(general, lean, caches, [step + 4])
        for cache in caches:
            cache.commit(torch.arange(1))


def test_all_passes_share_the_buffers_of_the_longest() -> None:
    _, lean = both("llama", compiled=True)
    assert lean._pass is not None
    from dartree_core.compiled.pass_data import GATE_UP_ROWS

    kept = []
    for rows in (60, 1, 5, 60):
        lean.forward(torch.arange(rows) % tiny.VOCAB, lean.new_cache())
        kept.append(lean._pass._room.job[GATE_UP_ROWS])
    assert len(set(kept)) == 1


def test_half_precision_is_not_compiled() -> None:
    general = tiny.target("llama")
    lean = LeanTarget(copy.deepcopy(general.model).bfloat16())
    lean.compile()
    assert "compiled" not in lean.path

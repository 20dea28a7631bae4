"""Which kernels drafts run on, and that no answer depends on it."""

from __future__ import annotations

import functools

import pytest
import torch

from dartree_core.config import DecodeConfig, Method, TreeConfig
from dartree_core.draft import load_drafter, rounding
from dartree_core.engine import Decoder
from dartree_core.models import kernels
from dartree_core.models.loading import load_target
from dartree_core.models.memory import Memory
from tests.core import tiny

WEIGHT = torch.randn(12, 8)
needs_int8 = pytest.mark.skipif(not kernels.has_int8(), reason="no 8-bit kernels here")


def fastest(monkeypatch: pytest.MonkeyPatch, name: str) -> list[tuple[str, ...]]:
    """Let `name` win every measurement it takes part in; returns who took part."""
    asked: list[tuple[str, ...]] = []

    def choose(weight: torch.Tensor, names: tuple[str, ...], *rest: object) -> str:
        asked.append(tuple(names))
        return name if name in names else names[0]

    monkeypatch.setattr(kernels, "choose", choose)
    return asked


def chosen(target: str = "llama", *, rounded: bool = True) -> rounding.DraftKernels:
    return rounding.choose(tiny.target(target), WEIGHT, 8, Memory(), rounded=rounded)


@needs_int8
def test_products_with_hidden_states_are_never_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fastest(monkeypatch, "int8")
    found = chosen()
    assert found.block == "int8"
    assert found.context in kernels.KERNELS
    assert "int8" not in asked[0]


def test_rounding_must_be_faster_to_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    fastest(monkeypatch, "none of them")
    exact = chosen(rounded=False)
    assert exact.block in kernels.KERNELS
    assert chosen() == rounding.DraftKernels(exact.block, exact.block)


def test_rounding_must_be_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    fastest(monkeypatch, "int8")
    assert chosen(rounded=False).block in kernels.KERNELS
    monkeypatch.setenv(rounding.ENV, "1")
    assert chosen().block in kernels.KERNELS


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("lean", [False, True], ids=["general", "lean"])
def test_every_precision_drafts(dtype: torch.dtype, lean: bool) -> None:
    """Most kernels for a CPU take float32 rows only."""
    target_name, draft_name = tiny.TRAINED["tied"]
    device = torch.device("cpu")
    target = load_target(tiny.CHECKPOINTS / target_name, device=device, dtype=dtype, lean=lean)
    folder = tiny.CHECKPOINTS / draft_name
    exact = load_drafter(folder, tiny.trained("tied").target)
    ours = load_drafter(folder, target, lean=True, rounded=True)
    ids = torch.arange(5, 25)
    found = []
    for model, drafter in ((tiny.trained("tied").target, exact), (target, ours)):
        out = model.forward(ids, model.new_cache(), taps=drafter.taps)
        assert out.features is not None
        cache = drafter.new_cache()
        drafter.extend(out.features, cache)
        found.append(drafter.draft(torch.tensor([7]), cache).base_logits)
    distance = (found[1] - found[0]).norm() / found[0].norm()
    assert float(distance) < (0.1 if dtype == torch.bfloat16 else 0.05)


@needs_int8
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.filterwarnings("error")
def test_the_8_bit_kernel_is_close(bias: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(40, 64, generator=generator)
    weight[7] *= 100  # outputs are scaled one by one
    weight[9] = 0
    offset = torch.randn(40, generator=generator) if bias else None
    kernel = kernels.named("int8")(weight, offset)
    for rows in (1, 6, 17):
        x = torch.randn(rows, 64, generator=generator)
        error = (kernel(x) - torch.nn.functional.linear(x, weight, offset)).abs()
        sizes = torch.outer(x.norm(dim=1), weight.norm(dim=1))
        assert bool((error <= 0.02 * sizes).all())


@functools.cache
def rounded(pair: str) -> Decoder:
    """A trained pair, its drafter on 8-bit products."""
    exact = tiny.trained(pair)
    folder = tiny.CHECKPOINTS / tiny.TRAINED[pair][1]
    with pytest.MonkeyPatch.context() as patch:
        fastest(patch, "int8")
        drafter = load_drafter(folder, exact.target, lean=True, rounded=True)
    assert drafter.kernels.block == "int8"
    return Decoder(exact.target, drafter)


@needs_int8
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", tiny.DRAFTING)
@pytest.mark.parametrize("pair", tiny.TRAINED)
def test_answers_do_not_depend_on_rounded_drafts(
    pair: str, method: Method, temperature: float
) -> None:
    config = DecodeConfig(method=method, tree=TreeConfig(budget=12), max_new_tokens=24)
    config = config.with_changes(temperature=temperature, seed=5)
    decoder = rounded(pair)
    found = decoder.generate(tiny.PROMPT, config)
    assert found.token_ids == tiny.plain(tiny.trained(pair), tiny.PROMPT, config).token_ids


@needs_int8
@pytest.mark.parametrize("pair", tiny.TRAINED)
def test_rounded_drafts_are_about_as_good(pair: str) -> None:
    config = DecodeConfig(tree=TreeConfig(budget=16), max_new_tokens=60, ignore_eos=True)
    rounds = [
        len(tiny.rounds(tiny.events(decoder, tiny.PROMPT, config)))
        for decoder in (tiny.trained(pair), rounded(pair))
    ]
    assert rounds[1] <= 1.2 * rounds[0]

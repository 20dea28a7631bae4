"""First weights from targets whose layers are not quite the drafter's."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from dartree_core.draft.dflash import DraftLayer
from dartree_core.draft.spec import DraftSpec
from dartree_core.models import Target
from dartree_core.train.design import drafter_config
from dartree_core.train.initialise import Start, initialise, input_scales
from dartree_core.train.model import TrainableDrafter
from dartree_core.train.recipe import ShapeRecipe
from tests.core import families

SHAPE = ShapeRecipe(num_layers=1, target_layers=(1, 3), head_embed=8, head_state=8, draft_vocab=0)
MASK = 7


def begun(target: Target, start: str = "target") -> TrainableDrafter:
    spec = DraftSpec.from_config(drafter_config(SHAPE, target, MASK))
    probe = torch.randn(40, 2 * target.hidden_size, generator=torch.Generator().manual_seed(3))
    model = TrainableDrafter(spec, input_scales(probe, target))
    initialise(model, Start(start), probe, target, None, 0)
    return model


def only(model: TrainableDrafter) -> DraftLayer:
    (layer,) = model.backbone.layers
    assert isinstance(layer, DraftLayer)
    return layer


def applied(norm: nn.Module, rows: Tensor) -> Tensor:
    with torch.no_grad():
        out: Tensor = norm(rows)
    return out


def test_codes_of_quantised_weights_are_not_taken_for_numbers() -> None:
    target = copy.deepcopy(families.target("llama"))
    theirs = target.layers[-1]
    for name, kind in (("gate_proj", torch.float8_e4m3fn), ("up_proj", torch.int8)):
        module = theirs.mlp.get_submodule(name)
        module.weight = nn.Parameter((module.weight * 9).to(kind), requires_grad=False)
    ours, random = only(begun(target)), only(begun(target, "random"))
    assert torch.equal(ours.mlp.gate_proj.weight, random.mlp.gate_proj.weight)
    assert torch.equal(ours.mlp.up_proj.weight, random.mlp.up_proj.weight)
    assert torch.equal(ours.mlp.down_proj.weight, theirs.mlp.down_proj.weight)


def test_norms_are_copied_by_what_they_do() -> None:
    target = copy.deepcopy(families.target("gemma3"))
    theirs = target.layers[-1]
    decoder = target.model.get_decoder()  # type: ignore[operator]
    norms = [decoder.norm, theirs.input_layernorm, theirs.pre_feedforward_layernorm]
    for norm in norms:
        nn.init.normal_(norm.weight)
    kept = [norm.weight for norm in norms]
    model = begun(target)
    rows = torch.randn(5, target.hidden_size)
    torch.testing.assert_close(applied(model.backbone.norm, rows), applied(decoder.norm, rows))
    ours = only(model)
    wanted = applied(theirs.pre_feedforward_layernorm, rows)
    torch.testing.assert_close(applied(ours.post_attention_layernorm, rows), wanted)
    # Unit-scaled features are normed, which the value projection makes up for.
    gain = ours.self_attn.v_proj.weight / theirs.self_attn.v_proj.weight
    shares = gain / (1 + theirs.input_layernorm.weight)
    torch.testing.assert_close(shares, shares[:1].expand_as(shares))
    assert all(norm.weight is weight for norm, weight in zip(norms, kept, strict=True))


def test_plain_norms_are_copied_exactly() -> None:
    target = copy.deepcopy(families.target("llama"))
    decoder = target.model.get_decoder()  # type: ignore[operator]
    nn.init.normal_(decoder.norm.weight)
    assert torch.equal(begun(target).backbone.norm.weight, decoder.norm.weight)


def test_a_mask_of_zeros_leaves_first_weights_finite() -> None:
    target = copy.deepcopy(families.target("llama"))
    with torch.no_grad():
        target.embedding.weight[MASK] = 0
    assert all(p.isfinite().all() for p in begun(target).parameters())

"""Run by `test_fused.py` with TRITON_INTERPRET=1: kernels on the CPU, against PyTorch's."""

from __future__ import annotations

import sys
from dataclasses import replace

import torch

from dartree_core.draft.static import StaticDrafts
from dartree_core.models import fused as module
from dartree_core.models.fused import Fused, check
from dartree_core.models.graphs import Graphs
from dartree_core.models.lean import LeanTarget
from dartree_core.models.static import StaticPasses
from tests.core import tiny


def model(family: str) -> LeanTarget:
    """Head sizes and widths that are no powers of 2 where kernels allow it."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    shape = {
        "vocab_size": 40,
        "hidden_size": 72,
        "intermediate_size": 1030,
        "num_hidden_layers": 1,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "initializer_range": 0.2,
    }
    torch.manual_seed(0)
    if family == "qwen3":
        found = Qwen3ForCausalLM(Qwen3Config(**shape))
        for name, weight in found.named_parameters():
            if name.endswith("norm.weight"):  # ones would hide a norm that is left out
                torch.nn.init.uniform_(weight, 0.5, 1.5)
    else:
        found = LlamaForCausalLM(LlamaConfig(**shape))
    return LeanTarget(found.eval().requires_grad_(False))


def drafts(target: LeanTarget) -> None:
    """Blocks of a drafter with heads of its own shape, some of its layers causal."""
    shape = {"hidden_size": 72, "head_dim": 32, "num_attention_heads": 4, "vocab_size": 40}
    shape |= {"num_target_layers": 1, "target_layer_ids": [0], "mask_token_id": 39}
    config = tiny.draft_config(target, **shape)
    plain, ours = (tiny.drafter(target, **config) for _ in range(2))
    spec = replace(plain.spec, causal=(False, True))
    plain.spec = ours.spec = spec
    ours.static = StaticDrafts(ours, Graphs(), Fused.of(target, 24).resized(4, 2, 32, 1e-6))
    caches = [drafter.new_cache() for drafter in (plain, ours)]
    for count in (5, 2):
        blocks = []
        for drafter, cache in zip((plain, ours), caches, strict=True):
            drafter.extend(torch.randn(count, 72, generator=seeded(count)), cache)
            blocks.append(drafter.draft(torch.tensor([7]), cache))
        for name in ("hidden", "base_logits"):
            torch.testing.assert_close(
                getattr(blocks[1], name), getattr(blocks[0], name), atol=1e-4, rtol=1e-4
            )
    print("drafts agree")


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@torch.inference_mode()
def main() -> None:
    torch.set_num_threads(1)
    module._TOLERANCE, module._CHECKED_ROWS, module._CHECKED_LENGTH = 1e-5, (1, 6), 70
    for family, processors in (("qwen3", 1), ("llama", 24)):
        target = model(family)
        fused = Fused.of(target, processors)
        check(fused, target)
        print(family, "kernels agree")
        # Whole passes: a prompt, a tree, plain steps.
        plain, ours = target.new_cache(), StaticPasses(target, Graphs(), fused)
        cache = ours.new_cache()
        for count in (9, 5, 1):
            tokens = torch.arange(count) % 40
            options = {}
            if count == 5:
                depth = torch.tensor([0, 1, 1, 2, 3])
                visible = torch.eye(5, dtype=torch.bool)
                visible[:, 0] = True
                visible[3, 1] = visible[4, 1] = visible[4, 3] = True
                options = {"positions": plain.length + depth, "visible": visible}
            wanted = target.forward(tokens, plain, taps=(0,), **options)
            found = ours.forward(
                tokens,
                cache,
                options.get("positions"),
                options.get("visible"),
                (0,),
                last_only=False,
            )
            torch.testing.assert_close(found.logits, wanted.logits, atol=1e-3, rtol=1e-3)
            torch.testing.assert_close(found.features, wanted.features, atol=1e-3, rtol=1e-3)
            kept = torch.arange(count) if count != 5 else torch.tensor([0, 1, 3])
            for held in (plain, cache):
                held.commit(kept)
        print(family, "passes agree", ours.facts)
    drafts(model("qwen3"))
    fused._bound = 100.0
    stale = torch.full((1, (6 + 4) * 32), float("nan"))
    data = torch.zeros(2, 2, 8, 32)
    one = torch.tensor([0])
    fused.attend(
        target.decoder_layers[0].norms,
        stale,
        data,
        target.rope_tables(8),
        one,
        one,
        torch.ones(1, 1, dtype=torch.bool),
    )
    assert bool(data.isfinite().all())
    print("overflow stays out of the cache")


if __name__ == "__main__":
    sys.exit(main())

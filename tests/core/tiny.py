"""Real models small enough for a test: targets of every supported family, drafters to match.

Weights are random, with a spread that keeps the best two logits apart by far more than rounding.
Everything is built once per process.
"""

from __future__ import annotations

import copy
import functools
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from dartree_core.config import DecodeConfig, Method, TreeConfig
from dartree_core.draft import BlockDraft, DraftCache, Drafter, DraftSpec, read_checkpoint
from dartree_core.draft.dflash import DFlashBackbone
from dartree_core.draft.heads import make_head
from dartree_core.engine import Decoder
from dartree_core.events import Event, RoundDone, TurnFinished
from dartree_core.models import KVCache, Target, TargetOutput, load_target

CHECKPOINTS = Path(__file__).parents[1] / "conformance" / "data" / "checkpoints"
TRAINED = {
    "tied-uncorrected-first-slot": ("target_tied", "draft_tied_p1_s0"),
    "tied": ("target_tied", "draft_tied_p0_s0"),
    "untied-shifted": ("target_untied", "draft_untied_p0_s1"),
    "untied-shifted-uncorrected-first-slot": ("target_untied", "draft_untied_p1_s1"),
}
"""Trained pairs, whose drafts are often right."""

DRAFTING: tuple[Method, ...] = ("dflash", "domino", "ddtree", "dartree", "dartree-fixed")
TREES: tuple[Method, ...] = ("ddtree", "dartree", "dartree-fixed")
VOCAB = 48
HIDDEN = 32
LAYERS = 4
PROMPT = [5, 17, 3, 29, 11, 40, 2, 23]
WINDOW = 5

_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "initializer_range": 0.35,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def _llama() -> PreTrainedModel:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**_SHAPE))


def _qwen2_tied() -> PreTrainedModel:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    shape = {k: v for k, v in _SHAPE.items() if k != "head_dim"}
    return Qwen2ForCausalLM(Qwen2Config(**shape | {"tie_word_embeddings": True}))


def _qwen3_padded() -> PreTrainedModel:
    """Embedding and output tables with more rows than any tokenizer or drafter knows."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(Qwen3Config(**_SHAPE | {"vocab_size": VOCAB + 16}))


def _gemma3() -> PreTrainedModel:
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    kinds = ["sliding_attention", "full_attention"] * (LAYERS // 2)
    more = {"sliding_window": WINDOW, "layer_types": kinds, "query_pre_attn_scalar": 8}
    return Gemma3ForCausalLM(Gemma3TextConfig(**_SHAPE | more))


def _mistral() -> PreTrainedModel:
    from transformers import MistralConfig, MistralForCausalLM

    return MistralForCausalLM(MistralConfig(**_SHAPE | {"sliding_window": WINDOW}))


def _mixtral() -> PreTrainedModel:
    from transformers import MixtralConfig, MixtralForCausalLM

    more = {"num_local_experts": 4, "num_experts_per_tok": 2}
    return MixtralForCausalLM(MixtralConfig(**_SHAPE | more))


def _qwen3_moe() -> PreTrainedModel:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    more = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**_SHAPE | more))


FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": _llama,
    "qwen2-tied": _qwen2_tied,
    "qwen3-padded": _qwen3_padded,
    "gemma3-sliding": _gemma3,
    "mistral-window": _mistral,
    "mixtral": _mixtral,
    "qwen3-moe": _qwen3_moe,
}


def wrap(model: PreTrainedModel) -> Target:
    return Target(model.eval().requires_grad_(False), label="tiny")


@functools.cache
def target(family: str) -> Target:
    torch.manual_seed(sorted(FAMILIES).index(family))
    return wrap(FAMILIES[family]())


@functools.cache
def trained(pair: str) -> Decoder:
    from dartree_core.draft import load_drafter

    target_name, draft_name = TRAINED[pair]
    model = _trained_target(target_name)
    return Decoder(model, load_drafter(CHECKPOINTS / draft_name, model))


@functools.cache
def _trained_target(name: str) -> Target:
    return load_target(CHECKPOINTS / name, device=torch.device("cpu"), dtype=torch.float32)


# Drafters


def draft_config(model: Target, **changes: Any) -> dict[str, Any]:
    """A Domino checkpoint's `config.json`; `changes` with value None drop a field."""
    config: dict[str, Any] = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": model.hidden_size,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 128,
        "vocab_size": VOCAB,
        "num_target_layers": model.num_layers,
        "block_size": 6,
        "mask_token_id": VOCAB - 1,
        "target_layer_ids": [0, 2],
        "projector_type": "domino",
        "emb_dim": 8,
        "gru_hidden_dim": 12,
        "pure_draft_prefix_len": 0,
        "shift_label": False,
    }
    config |= changes
    return {k: v for k, v in config.items() if v is not None}


def save_draft(
    folder: Path,
    config: dict[str, Any],
    *,
    seed: int = 0,
    vocab_ids: Sequence[int] | None = None,
    rename: Callable[[str], str] = lambda name: name,
    extra: Mapping[str, Tensor] | None = None,
) -> Path:
    """Write a drafter with random weights, and `extra` tensors, as a checkpoint folder."""
    spec = DraftSpec.from_config(config)
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for module in (DFlashBackbone(spec), make_head(spec)):
        for name, value in module.state_dict().items():
            noise = torch.randn(value.shape, generator=generator)
            tensors[rename(name)] = 0.35 * noise + (1.0 if value.dim() == 1 else 0.0)
    if vocab_ids is not None:
        tensors["draft_vocab_ids"] = torch.tensor(vocab_ids, dtype=torch.int32)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(tensors | dict(extra or {}), folder / "model.safetensors")
    return folder


class KnowingDrafter(Drafter):
    """A drafter that is told what to think: `opinion(base_logits, start)` replaces its marginals.

    `start` is the root's position; slot i is about position `start + 1 + i`.
    """

    opinion: Callable[[Tensor, int], Tensor] | None = None

    def draft(
        self,
        root: Tensor,
        cache: DraftCache,
        block_size: int | None = None,
        new: Tensor | None = None,
    ) -> BlockDraft:
        block = super().draft(root, cache, block_size, new)
        if self.opinion is not None:
            logits = self.opinion(block.base_logits, cache.length)
            block = BlockDraft(block.hidden, logits, block.vocabulary)
        return block


def drafter(
    model: Target, *, vocab_ids: Sequence[int] | None = None, seed: int = 0, **changes: Any
) -> KnowingDrafter:
    """A random drafter for `model`, without opinions yet."""
    config = draft_config(model, **changes)
    with tempfile.TemporaryDirectory() as folder:
        path = save_draft(Path(folder), config, vocab_ids=vocab_ids, seed=seed)
        return KnowingDrafter(read_checkpoint(path), model, label="tiny-draft")


def headless(model: Target, **changes: Any) -> KnowingDrafter:
    """A random drafter without a correction head."""
    return drafter(model, projector_type=None, emb_dim=None, gru_hidden_dim=None, **changes)


def _ahead(sequence: Sequence[int], start: int, logits: Tensor) -> list[tuple[int, int]]:
    """(slot, true token) for the slots of a block after `start` whose token can be drafted."""
    ahead = enumerate(sequence[start + 1 : start + 1 + len(logits)])
    return [(slot, token) for slot, token in ahead if token < logits.shape[1]]


def always_right(sequence: Sequence[int]) -> Callable[[Tensor, int], Tensor]:
    """Certain of `sequence`, prompt included, wherever it reaches."""

    def opinion(logits: Tensor, start: int) -> Tensor:
        out = logits.clamp(-1, 1)
        for slot, token in _ahead(sequence, start, logits):
            out[slot, token] = 60.0
        return out

    return opinion


def always_wrong(sequence: Sequence[int]) -> Callable[[Tensor, int], Tensor]:
    """Thinks the true continuation impossible."""

    def opinion(logits: Tensor, start: int) -> Tensor:
        out = logits.clone()
        for slot, token in _ahead(sequence, start, logits):
            out[slot, token] = -1e9
        return out

    return opinion


def vaguely_right(sequence: Sequence[int], ranks: int = 3) -> Callable[[Tensor, int], Tensor]:
    """Has the true token among its `ranks` best, seldom first: accepted rows lie scattered."""

    def opinion(logits: Tensor, start: int) -> Tensor:
        generator = torch.Generator().manual_seed(start)
        out = torch.randn(logits.shape, generator=generator)
        for slot, token in _ahead(sequence, start, logits):
            best = out[slot].topk(ranks).values
            rank = (7 * start + 3 * slot) % ranks
            out[slot, token] = best[rank] + 0.01
        return out

    return opinion


@functools.cache
def family(name: str) -> Decoder:
    """A family's target with a random Domino drafter."""
    return Decoder(target(name), drafter(target(name)))


def knowing(
    name: str,
    config: DecodeConfig,
    opinion: Callable[[Sequence[int]], Callable[[Tensor, int], Tensor]],
    prompt: Sequence[int] = PROMPT,
    **changes: Any,
) -> Decoder:
    """A family's decoder whose drafter knows what plain decoding answers under `config`."""
    draft = headless(target(name), **changes)
    answer = plain(family(name), prompt, config).token_ids
    draft.opinion = opinion([*prompt, *answer])
    return Decoder(target(name), draft)


FEW = 12


@functools.cache
def enumerable() -> Decoder:
    """So few tokens that laws can be computed in full, and that any guess is often right."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(5)
    model = wrap(LlamaForCausalLM(LlamaConfig(**_SHAPE | {"vocab_size": FEW})))
    return Decoder(model, drafter(model, vocab_size=FEW, mask_token_id=0, block_size=4))


# Text

SPECIAL = ["<|end|>", "<|user|>", "<|assistant|>"]
_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_THINKING = "{% if enable_thinking is defined and not enable_thinking %}no thoughts{% endif %}"
_SAMPLE = ["the cat sat on the mat", "the dog and the cat", "hello world, hello there"] * 4


def tokenizer(*, thinks: bool = False, template: bool = True) -> Any:
    """Byte-level BPE with few merges: characters outside ASCII take several tokens.

    Every caller has one of its own, which it may change.
    """
    return copy.deepcopy(_tokenizer(thinks, template))


@functools.cache
def _tokenizer(thinks: bool, template: bool) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(_SAMPLE, trainer)
    out = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=SPECIAL[0])
    if template:
        out.chat_template = _TEMPLATE + (_THINKING if thinks else "")
    return out


class ScriptedTarget(Target):
    """A target whose choice at a position is given, whatever the path: for tests of text."""

    script: Sequence[int] = ()

    def forward(self, tokens: Tensor, cache: KVCache, **options: Any) -> TargetOutput:
        out = super().forward(tokens, cache, **options)
        positions = options.get("positions")
        if positions is None:
            positions = torch.arange(cache.length, cache.length + len(tokens))
        for row, position in enumerate(positions.tolist()[-len(out.logits) :]):
            if position + 1 < len(self.script):
                out.logits[row, self.script[position + 1]] += 1000.0
        return out


def saying(text: str, prompt: Sequence[int] = PROMPT, **changes: Any) -> Decoder:
    """A decoder that answers `text`, then its end token; its drafter has an idea of it."""
    speller = tokenizer()
    script = [*prompt, *speller(text).input_ids, speller.eos_token_id]
    model = ScriptedTarget(_trained_target("target_tied").model)
    model.script = script
    draft = headless(model, **{"vocab_size": model.vocab_size} | changes)
    draft.opinion = vaguely_right(script)
    return Decoder(model, draft, speller)


# Running


def plain_config(config: DecodeConfig) -> DecodeConfig:
    """The same turn, decoded plainly."""
    return replace(config, method="ar", tree=TreeConfig(), stages=False, detail="basic")


@functools.cache
def _plain(decoder: Decoder, prompt: tuple[int, ...], config: DecodeConfig) -> TurnFinished:
    return decoder.generate(list(prompt), config)


def plain(decoder: Decoder, prompt: Sequence[int], config: DecodeConfig) -> TurnFinished:
    """What plain decoding answers in a fresh session."""
    return _plain(decoder, tuple(prompt), plain_config(config))


def greedy_transformers(
    model: Target, prompt: Sequence[int], count: int, **options: Any
) -> list[int]:
    """What transformers' own `generate` says."""
    ids = torch.tensor([list(prompt)])
    hf: Any = model.model
    out = hf.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=count,
        eos_token_id=None,
        pad_token_id=0,
        **options,
    )
    found: list[int] = out[0, len(prompt) :].tolist()
    return found


def events(decoder: Decoder, prompt: Any, config: DecodeConfig, **options: Any) -> list[Event]:
    return list(decoder.stream(prompt, config, **options))


def rounds(found: Sequence[Event]) -> list[RoundDone]:
    return [e for e in found if isinstance(e, RoundDone)]


def finish(found: Sequence[Event]) -> TurnFinished:
    last = found[-1]
    assert isinstance(last, TurnFinished)
    return last


def hooks(model: Target) -> int:
    """Forward hooks anywhere in the model."""
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.model.modules())

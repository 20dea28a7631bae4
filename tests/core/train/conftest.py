"""A tiny target that answers in loops, so that a drafter has something to learn."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dartree_core.models import Target, load_target
from dartree_core.train.corpus import Corpus, Sample
from dartree_core.train.design import end_tokens
from dartree_core.train.generate import generate_batch
from dartree_core.train.recipe import Recipe
from dartree_core.train.stream import keyed_generator

CHECKPOINTS = Path(__file__).parents[2] / "conformance" / "data" / "checkpoints"


TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}> {{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """512 words: numbers, so that any id can be written, and the roles."""
    words = {f"w{i}": i for i in range(509)} | {"<user>": 509, "<assistant>": 510, "?": 511}
    core = Tokenizer(models.WordLevel(words, unk_token="?"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="?")
    made.chat_template = TEMPLATE
    return made


@pytest.fixture(scope="session")
def speaking_target(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    """The target's folder with a tokenizer beside the weights."""
    folder = tmp_path_factory.mktemp("models") / "speaking"
    shutil.copytree(CHECKPOINTS / "target_tied", folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def target() -> Target:
    torch.set_num_threads(1)
    return load_target(CHECKPOINTS / "target_tied", device=torch.device("cpu"), dtype=torch.float32)


def answers(target: Target, count: int, seed: int, length: int = 48) -> Corpus:
    """Greedy answers to random prompts."""
    prompts = torch.randint(5, 500, (count, 6), generator=keyed_generator(seed)).tolist()
    found = generate_batch(
        target, prompts, [0.0] * count, length, frozenset(end_tokens(target)), keyed_generator(0)
    )
    samples = tuple(
        Sample(np.array([*p, *a], dtype=np.int64), len(p), 0.0, "random")
        for p, a in zip(prompts, found, strict=True)
    )
    return Corpus(samples)


@pytest.fixture(scope="session")
def corpus(target: Target) -> Corpus:
    return answers(target, 48, 1)


@pytest.fixture(scope="session")
def held_out(target: Target) -> Corpus:
    return answers(target, 12, 2)


@pytest.fixture(scope="session")
def recipe() -> Recipe:
    return Recipe.from_dict(
        {
            "drafter": {
                "block_size": 6,
                "num_layers": 1,
                "target_layers": [0, 2],
                "head_embed": 16,
                "head_state": 32,
                "draft_vocab": 384,
            },
            "data": {"anchors": 16, "sequences": 2},
            # In bfloat16 a run may take the shared target's weights over.
            "features": {"precision": "float32"},
            "optimiser": {"lr": 5e-3, "warmup": 5, "ema": 0.9},
            "run": {"steps": 80, "precision": "float32", "save_seconds": 1e9, "eval_steps": 0},
        }
    )


def settings(recipe: Recipe, **sections: dict[str, object]) -> Recipe:
    """The recipe with some settings changed."""
    return Recipe.from_dict(sections, recipe)

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dartree_core.config import DecodeConfig
from dartree_core.engine import Decoder
from dartree_core.errors import ConfigError
from dartree_core.models import Target
from dartree_core.train.collect import CollectSettings, collect
from dartree_core.train.corpus import read_corpus
from dartree_core.train.generate import generate_batch
from dartree_core.train.prompts import PromptRow, read_prompts
from dartree_core.train.stream import keyed_generator


def rows() -> list[PromptRow]:
    single = [PromptRow((f"w{i} w{i + 7} " * (1 + i % 3),), "one") for i in range(10, 17)]
    return [*single, PromptRow(("w3 w4", "w5"), "two")]


SETTINGS = CollectSettings(
    temperatures=(0.0, 1.0), max_new_tokens=8, max_prompt_tokens=64, batch=3, shard=3
)


def test_greedy_rows_equal_plain_decoding(target: Target) -> None:
    decoder = Decoder(target)
    prompts = [[9, 8, 7], [5], [100, 200, 300, 400, 11]]
    found = generate_batch(
        target, prompts, [0.0] * 3, 12, frozenset(decoder.eos), keyed_generator(0)
    )
    plain = DecodeConfig(method="ar", max_new_tokens=12)
    assert found == [list(decoder.generate(p, plain).token_ids) for p in prompts]


def test_rows_that_end_early_leave_the_others_alone(target: Target) -> None:
    prompts = [[9, 8, 7], [100, 200, 300], [5, 6]]
    whole = generate_batch(target, prompts, [0.0] * 3, 10, frozenset(), keyed_generator(0))
    end = next(t for t in whole[1][2:] if t not in whole[1][:2])
    cut = generate_batch(target, prompts, [0.0] * 3, 10, frozenset({end}), keyed_generator(0))
    for full, found in zip(whole, cut, strict=True):
        stop = full.index(end) + 1 if end in full else len(full)
        assert found == full[:stop]


def test_temperature_is_each_rows_own(target: Target) -> None:
    heats = [0.0, 5.0]
    prompts = [[9, 8, 7]] * 2
    runs = [
        generate_batch(target, prompts, heats, 10, frozenset(), keyed_generator(seed))
        for seed in (1, 2, 1)
    ]
    assert runs[0][0] == runs[1][0]
    assert runs[0][1] != runs[1][1]
    assert runs[0] == runs[2]


def test_a_killed_collection_goes_on_and_is_the_same(
    tmp_path: Path, target: Target, tokenizer: Any
) -> None:
    whole = collect(target, tokenizer, rows(), tmp_path / "whole", SETTINGS)
    assert whole.shards == whole.of == 3
    assert whole.answers == 9

    class KilledError(Exception):
        pass

    def kill(now: Any) -> None:
        if now.shards == 1 and now.answers > 3:
            raise KilledError

    with pytest.raises(KilledError):
        collect(target, tokenizer, rows(), tmp_path / "cut", SETTINGS, kill)
    assert len(list((tmp_path / "cut").glob("*.npz"))) == 1
    again = collect(target, tokenizer, rows(), tmp_path / "cut", SETTINGS)
    assert again.answers < whole.answers
    corpora = [read_corpus([tmp_path / name]) for name in ("whole", "cut")]
    assert corpora[0].fingerprint() == corpora[1].fingerprint()
    assert {s.temperature for s in corpora[0].samples} == {0.0, 1.0}
    assert corpora[0].sources() == {"one": 7, "two": 2}


def test_the_models_reply_goes_between_turns(
    tmp_path: Path, target: Target, tokenizer: Any
) -> None:
    collect(target, tokenizer, [PromptRow(("w3 w4", "w5"), "two")], tmp_path, SETTINGS)
    first, second = read_corpus([tmp_path]).samples
    shared = len(first.tokens)
    assert np.array_equal(second.tokens[:shared], first.tokens)
    assert tokenizer.decode(second.tokens[shared : second.answer]).split() == [
        "<user>",
        "w5",
        "<assistant>",
    ]


def test_other_settings_are_refused(tmp_path: Path, target: Target, tokenizer: Any) -> None:
    collect(target, tokenizer, rows(), tmp_path, SETTINGS)
    other = CollectSettings(temperatures=(0.0,), max_new_tokens=8, batch=3, shard=3)
    with pytest.raises(ConfigError, match="made with other settings"):
        collect(target, tokenizer, rows(), tmp_path, other)
    # Nor would answers to other prompts stand beside them under other names.
    before = sorted(p.name for p in tmp_path.iterdir())
    with pytest.raises(ConfigError, match="made with other prompts"):
        collect(target, tokenizer, rows()[:2], tmp_path, SETTINGS)
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_long_prompts_are_counted_and_left_out(
    tmp_path: Path, target: Target, tokenizer: Any
) -> None:
    long = PromptRow(("w1 " * 70,), "long")
    done = collect(target, tokenizer, [long, *rows()[:2]], tmp_path, SETTINGS)
    assert (done.skipped, done.answers) == (1, 2)


def test_answers_end_with_the_targets_context(
    tmp_path: Path, target: Target, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = generate_batch(target, [[9, 8], [5] * 9], [0.0] * 2, 9, frozenset(), keyed_generator(0))
    monkeypatch.setattr(target, "max_positions", 12)
    cut = generate_batch(target, [[9, 8], [5] * 9], [0.0] * 2, 9, frozenset(), keyed_generator(0))
    assert cut == [free[0], free[1][:3]]
    long = PromptRow(("w1 " * 10,), "long")
    done = collect(target, tokenizer, [long, PromptRow(("w1 w2",), "short")], tmp_path, SETTINGS)
    assert (done.skipped, done.answers) == (1, 1)


def test_prompt_files(tmp_path: Path) -> None:
    file = tmp_path / "asks.jsonl"
    lines = [{"prompt": "a"}, {"turns": ["b", "c"]}, {"prompt": "d"}]
    file.write_text("\n".join(map(json.dumps, lines)) + "\n\n", encoding="utf-8")
    assert read_prompts([file]) == [
        PromptRow(("a",), "asks"),
        PromptRow(("b", "c"), "asks"),
        PromptRow(("d",), "asks"),
    ]
    assert len(read_prompts([file, file], limit=2)) == 4
    file.write_text('{"prompt": "one\u2028line"}\r\n', encoding="utf-8")
    assert read_prompts([file]) == [PromptRow(("one\u2028line",), "asks")]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "empty"),
        ('{"prompt": "a"}\nno json', "line 2"),
        ('{"question": "a"}', "line 1"),
        ('{"turns": ["a", 3]}', "line 1"),
        ('{"prompt": " "}', "line 1"),
    ],
)
def test_mistakes_in_prompt_files_are_named(text: str, named: str, tmp_path: Path) -> None:
    file = tmp_path / "asks.jsonl"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=named):
        read_prompts([file])


def test_generators_are_not_torchs_global_one(target: Target) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    generate_batch(target, [[5, 6]], [1.0], 3, frozenset(), keyed_generator(0))
    assert torch.equal(before, torch.get_rng_state())

"""What a tensor-parallel target refuses before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dartree_core.errors import ConfigError
from dartree_core.parallel.sharded import _check_heads


def config(folder: Path, **fields: object) -> Path:
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


def test_heads_that_do_not_divide_are_refused_with_numbers_that_fit(tmp_path: Path) -> None:
    folder = config(tmp_path, num_attention_heads=9, num_key_value_heads=3)
    _check_heads(folder, 3)
    for size in (2, 4):
        with pytest.raises(ConfigError, match="9 attention heads and 3 of keys") as caught:
            _check_heads(folder, size)
        assert caught.value.remedy.startswith("Start 3 processes, or one")


def test_a_head_that_all_share_needs_one_process(tmp_path: Path) -> None:
    folder = config(tmp_path, num_attention_heads=8, num_key_value_heads=1)
    with pytest.raises(ConfigError) as caught:
        _check_heads(folder, 2)
    assert caught.value.remedy.startswith("Use one process")


def test_heads_of_the_text_model_count(tmp_path: Path) -> None:
    folder = config(tmp_path, text_config={"num_attention_heads": 8, "num_key_value_heads": 4})
    _check_heads(folder, 4)
    with pytest.raises(ConfigError):
        _check_heads(folder, 8)

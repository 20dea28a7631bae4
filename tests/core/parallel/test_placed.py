"""A target placed by accelerate: some layers here, some on another device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dartree_core.bundles import load
from dartree_core.config import DecodeConfig
from dartree_core.draft import load_drafter
from dartree_core.engine import Decoder
from dartree_core.errors import ConfigError
from dartree_core.models.loading import load_model
from dartree_core.parallel.placed import NAMED_MAPS, PlacedTarget, load_placed, read_device_map
from tests.core import tiny

TARGET = tiny.CHECKPOINTS / "target_tied"
DRAFT = tiny.CHECKPOINTS / "draft_tied_p0_s0"
CPU = torch.device("cpu")
CONFIGS = [
    DecodeConfig().with_changes(method="dartree", budget=16, max_new_tokens=24),
    DecodeConfig().with_changes(
        method="dartree", budget=16, max_new_tokens=24, temperature=0.9, seed=3
    ),
]


@pytest.fixture(scope="module")
def spread(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    """Two layers are elsewhere, as far as accelerate's hooks go: their weights come when they run.

    On one machine without GPUs a disk is the only second place there is.
    """
    places = {"model.embed_tokens": "cpu", "lm_head": "cpu", "model.norm": "cpu"}
    places |= {"model.rotary_emb": "cpu"}
    places |= {f"model.layers.{i}": "disk" if i in (1, 2) else "cpu" for i in range(4)}
    folder = tmp_path_factory.mktemp("offload")
    model = load_model(TARGET, CPU, torch.float32, device_map=places, offload_folder=str(folder))
    assert model.model.layers[1].mlp.up_proj.weight.is_meta
    target = PlacedTarget(model)
    return Decoder(target, load_drafter(DRAFT, target))


@pytest.mark.parametrize("config", CONFIGS, ids=["greedy", "sampled"])
def test_it_answers_as_one_device_does(spread: Decoder, config: DecodeConfig) -> None:
    expected = tiny.trained("tied").generate(tiny.PROMPT, config)
    assert spread.generate(tiny.PROMPT, config).token_ids == expected.token_ids


def test_a_second_turn_reuses_the_first(spread: Decoder) -> None:
    alone = tiny.trained("tied")
    theirs, ours = alone.session(), spread.session()
    prompt = list(tiny.PROMPT)
    for _ in range(2):
        expected = alone.generate(prompt, CONFIGS[0], session=theirs)
        assert spread.generate(prompt, CONFIGS[0], session=ours).token_ids == expected.token_ids
        assert ours.ids == theirs.ids
        prompt += [*expected.token_ids, 7, 9]


def test_its_tables_can_be_read(spread: Decoder) -> None:
    plain = tiny.trained("tied").target
    tokens = torch.tensor(tiny.PROMPT)
    assert spread.target.embed(tokens).equal(plain.embed(tokens))
    assert spread.target.output_weight.equal(plain.output_weight)
    assert "disk" in spread.target.path


def test_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DARTREE_HOME", str(tmp_path))
    found = load(target=TARGET, draft=DRAFT, dtype="float32", device="cpu", device_map="auto")
    assert isinstance(found.target, PlacedTarget)
    expected = tiny.trained("tied").generate(tiny.PROMPT, CONFIGS[0])
    assert found.generate(tiny.PROMPT, CONFIGS[0]).token_ids == expected.token_ids


def test_maps(tmp_path: Path) -> None:
    for name in NAMED_MAPS:
        assert read_device_map(name) == name
    file = tmp_path / "map.json"
    file.write_text(json.dumps({"model": 0}))
    assert read_device_map(str(file)) == {"model": 0}
    file.write_text("[]")
    with pytest.raises(ConfigError, match="holds no map"):
        read_device_map(str(file))
    with pytest.raises(ConfigError, match="no known map"):
        read_device_map("automatic")


def test_a_table_out_of_reach_is_refused(tmp_path: Path) -> None:
    model = load_model(
        TARGET, CPU, torch.float32, device_map={"": "disk"}, offload_folder=str(tmp_path)
    )
    with pytest.raises(ConfigError, match="does not fit"):
        PlacedTarget(model)
    with pytest.raises(ConfigError, match="no known map"):
        load_placed(TARGET, "nowhere", device=CPU, dtype=torch.float32)

"""Training by two processes: as one would, exactly resumable, also with the target in parts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from dartree_core.models import Target
from dartree_core.train.corpus import Corpus, write_shard
from dartree_core.train.recipe import Recipe
from tests.core.parallel.ranks import ranks
from tests.core.train.conftest import (  # noqa: F401
    CHECKPOINTS,
    corpus,
    recipe,
    settings,
    target,
)
from tests.core.train.test_training import begin, losses

STEPS = 4
TRAIN = """
import json
import sys
from pathlib import Path

import torch

from dartree_core.errors import ConfigError
from dartree_core.models import load_target
from dartree_core.parallel.frozen import load_frozen
from dartree_core.train.corpus import read_corpus
from dartree_core.train.initialise import Start
from dartree_core.train.parallel import join, leave
from dartree_core.train.recipe import Recipe
from dartree_core.train.run import Inputs, open_run

folder, checkpoint = map(Path, sys.argv[1:])
cpu = torch.device("cpu")
world = join(cpu)
recipe = Recipe.from_toml(folder / "recipe.toml")
corpus = read_corpus([folder / "corpus.npz"])
whole = load_target(checkpoint, device=cpu, dtype=torch.float32)
parts = load_frozen(checkpoint, device=cpu, dtype=torch.float32)


def train(name, target, most, cache=None):
    out = folder / name
    inputs = Inputs(target, corpus, None, out, Start("target"), cache=cache)
    run = open_run(recipe, inputs, world)
    found = []
    for report in run.trainer.steps():
        found.append(report.loss)
        if len(found) == most:
            break
    # Only one process saves; the next run is to find the same in both.
    torch.distributed.barrier()
    return found


def refused():
    # The other's folder holds a run, ours may hold none.
    try:
        train("broken" if world.leads else "elsewhere", whole, 99)
    except ConfigError as error:
        return error.message


losses = {
    "unbroken": train("unbroken", whole, 99),
    "broken": train("broken", whole, 2) + train("broken", whole, 99),
    "apart": refused(),
    "parts": train("parts", parts, 99, folder / "cache"),
    "parts from the cache": train("again", parts, 99, folder / "cache"),
}
if world.leads:
    print(json.dumps(losses), flush=True)
leave()
"""


def test_two_processes_train_as_one_and_resume_exactly(
    tmp_path: Path,
    recipe: Recipe,  # noqa: F811
    target: Target,  # noqa: F811
    corpus: Corpus,  # noqa: F811
) -> None:
    # Three sequences a step, so that one process stands by.
    wanted = settings(
        recipe,
        run={"steps": STEPS, "save_seconds": 0.0},
        data={"sequences": 3},
        features={"cache_gb": 0.01},
    )
    (tmp_path / "recipe.toml").write_text(wanted.to_toml())
    write_shard(tmp_path / "corpus.npz", corpus.samples, {})
    alone = losses(begin(tmp_path / "alone", wanted, target, corpus))
    with ranks("-c", TRAIN, str(tmp_path), str(CHECKPOINTS / "target_tied")) as both:
        (code, out, errors), (other, _, _) = both.finish()
    assert (code, other) == (0, 0), errors
    found = json.loads(out)
    assert found["unbroken"] == pytest.approx(alone, rel=1e-4)
    assert found["broken"] == found["unbroken"]
    assert "processes of this run differ" in found["apart"]
    assert not (tmp_path / "elsewhere").exists()
    for name in ("parts", "parts from the cache"):
        assert found[name] == pytest.approx(alone, rel=1e-3), name
    first, second = (
        load_file(tmp_path / name / "training" / "state.safetensors")
        for name in ("unbroken", "broken")
    )
    assert first.keys() == second.keys()
    assert all(first[name].equal(second[name]) for name in first)

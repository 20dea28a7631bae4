"""`dartree run --profile`, in both formats."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from dartree_core.cli import main
from dartree_core.profile import ceilings
from dartree_core.profile.ceilings import Ceilings
from tests.core import tiny


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("profiled") / "target"
    shutil.copytree(tiny.CHECKPOINTS / "target_tied", folder)
    tiny.tokenizer().save_pretrained(folder)
    draft = tiny.CHECKPOINTS / "draft_tied_p0_s0"
    return ["--target", str(folder), "--draft", str(draft), "--dtype", "float32"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DARTREE_HOME", str(tmp_path))
    monkeypatch.setattr(ceilings, "measure", lambda target: Ceilings(1e10, 1e11))


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["run", "to be or not", *words])
    assert not ended.value.code
    out, err = capsys.readouterr()
    return out, err


@pytest.mark.parametrize("more", [[], ["--compare-ar"]], ids=["alone", "beside AR"])
def test_json_has_a_profile_object(
    capsys: pytest.CaptureFixture[str], models: list[str], more: list[str]
) -> None:
    words = [*models, "-n", "20", "--budget", "8", "--format", "json", *more]
    plain = json.loads(run(capsys, *words)[0])
    found = json.loads(run(capsys, *words, "--profile")[0])
    assert "profile" not in plain
    assert found["token_ids"] == plain["token_ids"]
    profile = found["profile"]
    metrics = found["metrics"]
    assert profile["rounds"] == metrics["num_spec_steps"] + metrics["num_plain_steps"]
    assert profile["passes"]["verify"]["count"] == metrics["num_spec_steps"]
    assert profile["passes"]["ar_step"]["count"] >= 11
    assert 0 < profile["host"]["share"] < 1


def test_text_gets_more_lines(capsys: pytest.CaptureFixture[str], models: list[str]) -> None:
    out, err = run(capsys, *models, "-n", "12", "--budget", "8", "--profile")
    words = " ".join(err.split())
    for part in ("AR step", "verify pass", "draft pass", "machine", "of a copy", "of a product"):
        assert part in words
    assert out

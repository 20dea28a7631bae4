"""The round-cost benchmark runs on any models and says what it measured."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.core import tiny

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "round_cost.py"


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("round_cost", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["round_cost"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_every_case_is_measured_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target, draft = (str(tiny.CHECKPOINTS / name) for name in tiny.TRAINED["tied"])
    out = tmp_path / "figures.json"
    words = ["--target", target, "--draft", draft, "--prompt-ids", "5,17,3", "--device", "cpu"]
    words += ["--budgets", "2,5", "--widths", "3,6", "--tokens", "30", "--repeats", "1"]
    monkeypatch.setattr("sys.argv", [str(SCRIPT), *words, "--json", str(out)])
    script().main()
    shown = capsys.readouterr().out
    figures = json.loads(out.read_text())
    names = ["ar", "B=2 W=3", "B=2 W=6", "B=5 W=3", "B=5 W=6"]
    assert [row["case"] for row in figures["cases"]] == names
    assert all(name in shown for name in names)
    plain, *drafted = figures["cases"]
    assert plain["tokens_per_round"] == 1
    assert plain["ms"]["draft"] == [0, 0, 0]
    assert plain["steps"]["round"][1] == pytest.approx(1, abs=0.01)
    for row in drafted:
        assert 1 <= row["tokens_per_round"] <= 6
        low, middle, high = row["ms"]["tree_build"]
        assert 0 < low <= middle <= high
        assert row["ms"]["host"][1] >= row["ms"]["draft"][1]


def test_too_short_an_answer_is_refused() -> None:
    module = script()
    cases = [module.Case("ar", config=None), module.Case("B=8 W=12", config=None)]
    with pytest.raises(SystemExit, match="ar took too few rounds; raise --tokens"):
        module.report(tiny.trained("tied"), cases, "wall")

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dartree_core.cli.train import app
from dartree_core.errors import ConfigError, DARTreeError
from dartree_core.train.corpus import Corpus, write_shard
from dartree_core.train.recipe import Recipe, preset
from tests.core.train.conftest import CHECKPOINTS, settings

TARGET = ["--target", str(CHECKPOINTS / "target_tied"), "--device", "cpu"]
DRAFT = str(CHECKPOINTS / "draft_tied_p0_s0")


def run(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def refused(*words: str) -> DARTreeError:
    with pytest.raises(DARTreeError) as caught:
        run(*words)
    assert caught.value.remedy
    return caught.value


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory, held_out: Corpus) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.npz"
    write_shard(path, held_out.samples, {})
    return path


def test_recipes_can_be_printed_and_changed(tmp_path: Path) -> None:
    printed = tmp_path / "recipe.toml"
    printed.write_text(run("drafter", "--print-recipe", "--recipe", "8b"), encoding="utf-8")
    assert Recipe.from_toml(printed) == preset("8b")
    changed = run(
        "drafter", "--print-recipe", "--recipe", str(printed), "--set", "run.steps=9",
        "--set", "drafter.target_layers=[1, 2]", "--set", "run.precision=float32",
    )  # fmt: skip
    assert "steps = 9" in changed
    assert "target_layers = [1, 2]" in changed
    assert 'precision = "float32"' in changed


def test_a_run_from_the_command_line(tmp_path: Path, recipe: Recipe, shard: Path) -> None:
    file = tmp_path / "recipe.toml"
    short = settings(recipe, run={"steps": 3, "eval_steps": 2, "save_seconds": 0.0})
    file.write_text(short.to_toml(), encoding="utf-8")
    out = tmp_path / "drafter"
    words = ["drafter", str(shard), "--out", str(out), "--held-out", str(shard), *TARGET]
    run(*words, "--recipe", str(file), "--licence", "Apache-2.0")
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "license: apache-2.0" in card
    assert "On 12 held-out answers" in card
    # A finished run has nothing left to do, and remembers its recipe.
    run(*words)
    longer = run("drafter", "--print-recipe", "--out", str(out), "--set", "run.steps=4")
    assert "steps = 4" in longer
    assert "head_state = 32" in longer


def test_eval_prints_a_table_and_json(tmp_path: Path, shard: Path) -> None:
    words = ["eval", DRAFT, "--held-out", str(shard), *TARGET, "--method", "domino"]
    saved = tmp_path / "figures.json"
    text = run(*words, "--method", "dartree", "--budget", "8", "--save", str(saved))
    assert "dartree B=8" in text
    figures = json.loads(saved.read_text(encoding="utf-8"))
    assert [row["variant"] for row in figures["acceptance"]] == ["domino", "dartree B=8"]
    assert all(row["acceptance_length"] >= 1 for row in figures["acceptance"])
    assert len(figures["held_out_accuracy"]["corrected"]) == 7
    assert (
        json.loads(run(*words, "--format", "json"))["held_out_accuracy"]
        == (figures["held_out_accuracy"])
    )


def test_eval_says_why_another_kind_has_no_accuracy(tmp_path: Path, shard: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(DRAFT, other)
    config = json.loads((other / "config.json").read_text(encoding="utf-8"))
    (other / "config.json").write_text(json.dumps(config | {"output_multiplier": 0.5}))
    saved = tmp_path / "figures.json"
    words = ["eval", str(other), "--held-out", str(shard), *TARGET, "--method", "domino"]
    text = run(*words, "--save", str(saved))
    assert "left out: this drafter has scaled or bounded logits" in text
    figures = json.loads(saved.read_text(encoding="utf-8"))
    assert figures["held_out_accuracy"] is None
    assert figures["acceptance"][0]["rounds"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["drafter"], "needs a corpus"),
        (["drafter", "--print-recipe", "--recipe", "9b"], "9b"),
        (["drafter", "--print-recipe", "--set", "steps=3"], "--set steps=3"),
        (["drafter", "--print-recipe", "--set", "run.speed=3"], "run.speed"),
        (["drafter", "nowhere.npz", "--out", "x"], "nowhere.npz"),
        (["eval", DRAFT], "nothing to measure"),
        (["eval", DRAFT, "--prompts", "nowhere.jsonl"], "nowhere.jsonl"),
        (["corpus", "nowhere.jsonl", "--out", "x"], "nowhere.jsonl"),
    ],
)
def test_mistakes_are_named(words: list[str], named: str) -> None:
    assert named in refused(*words).message


def test_settings_are_checked_before_models_load(shard: Path) -> None:
    known = ["eval", DRAFT, "--held-out", str(shard), "--target", "nowhere"]
    assert "ar" in refused(*known, "--method", "ar").message
    assert "budget" in refused(*known, "--budget", "0").message
    assert "temperature" in refused(*known, "--temperature", "-1").message
    assert "folder" in refused(*known, "--save", "nowhere/figures.json").message


def test_a_target_without_a_tokenizer_reads_no_prompts(tmp_path: Path) -> None:
    asks = tmp_path / "asks.jsonl"
    asks.write_text('{"prompt": "hello"}\n', encoding="utf-8")
    error = refused("corpus", str(asks), "--out", str(tmp_path / "out"), *TARGET)
    assert "no tokenizer" in error.message


def test_first_weights_must_exist(tmp_path: Path, shard: Path) -> None:
    error = refused(
        "drafter", str(shard), "--out", str(tmp_path / "x"), "--init", "nowhere", *TARGET
    )
    assert isinstance(error, ConfigError)
    assert "nowhere" in error.message


def test_corpus_then_eval_by_decoding(tmp_path: Path, speaking_target: Path) -> None:
    asks = tmp_path / "asks.jsonl"
    asks.write_text('{"prompt": "w3 w4"}\n{"turns": ["w8", "w9 w5"]}\n', encoding="utf-8")
    place = ["--target", str(speaking_target), "--device", "cpu", "--dtype", "float32"]
    made = run(
        "corpus", str(asks), "--out", str(tmp_path / "corpus"), *place, "--temperature", "0",
        "--max-new-tokens", "40",
    )  # fmt: skip
    assert "3 answers" in made
    report = run(
        "eval", DRAFT, "--prompts", str(asks), "--held-out", str(tmp_path / "corpus"), *place,
        "--method", "dartree", "--budget", "16", "--temperature", "0", "--temperature", "1",
        "--max-new-tokens", "40", "--format", "json",
    )  # fmt: skip
    rows = json.loads(report)["acceptance"]
    assert [(r["data"], r["temperature"]) for r in rows] == [
        ("asks (known)", 0.0),
        ("asks", 0.0),
        ("asks", 1.0),
    ]
    known, decoded, _ = rows
    # The same answers; only decoding counts the rounds that their ends cut short.
    assert 0 <= decoded["rounds"] - known["rounds"] <= 3 * 7
    assert decoded["acceptance_length"] == pytest.approx(known["acceptance_length"], abs=0.6)

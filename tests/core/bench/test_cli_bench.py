"""`dartree bench`, from its command line to its output, on models of this folder's size."""

from __future__ import annotations

import csv
import io
import json
import signal
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from dartree_core.bench.run import Bench
from dartree_core.cli.bench import bench
from dartree_core.errors import ConfigError, DARTreeError
from tests.core import tiny

app = typer.Typer()
app.command()(bench)
TARGET, DRAFT = (str(tiny.CHECKPOINTS / name) for name in tiny.TRAINED["tied"])
MODELS = ("--target", TARGET, "--draft", DRAFT, "--dtype", "float32", "--device", "cpu")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DARTREE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "ids.jsonl"
    rows = [{"prompt_ids": [5 + i, 17, 3, 29]} for i in range(6)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def invoke(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def measured(prompts: Path, *words: str) -> Any:
    found = invoke(
        *MODELS, "--datasets", str(prompts), "--format", "json", "--quiet", "-n", "24", *words
    )
    assert found.exit_code == 0, found.exception
    return json.loads(found.stdout)


def refused(*words: str) -> DARTreeError:
    caught = invoke(*words).exception
    assert isinstance(caught, DARTreeError), caught
    assert caught.remedy
    return caught


def test_the_contract(prompts: Path) -> None:
    report = measured(prompts, "--methods", "ar,dartree", "--limit", "4")
    plain, ours = report["rows"]
    assert (plain["method"], ours["method"]) == ("ar", "dartree")
    for row in (plain, ours):
        assert row["dataset"] == "ids"
        assert row["temperature"] == 0.0
        assert row["prompts"] == 4
        assert row["identical"] == 1.0
        assert row["tokens_per_second"] > 0
        assert row["speedup"] > 0
    assert (plain["budget"], ours["budget"]) == (None, "auto")
    assert (plain["speedup"], plain["mean_acceptance_length"]) == (1.0, 1.0)
    assert ours["mean_acceptance_length"] >= 1.0
    environment = report["environment"]
    assert {"torch", "transformers", "python", "dartree"} <= set(environment["versions"])
    assert environment["machine"]["cpus"] >= 1
    assert environment["command"].startswith("dartree bench --methods ar,dartree")


def test_plain_decoding_is_measured_even_if_not_listed(prompts: Path) -> None:
    report = measured(prompts, "--methods", "domino", "--limit", "1")
    assert [row["method"] for row in report["rows"]] == ["ar", "domino"]


def test_every_data_set_may_have_a_limit_of_its_own(prompts: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text(prompts.read_text())
    report = measured(
        prompts, "--methods", "ar", "--datasets", f"{prompts}:2,{other}", "--limit", "3"
    )
    assert {row["dataset"]: row["prompts"] for row in report["rows"]} == {"ids": 2, "other": 3}


def test_all_methods_by_default(prompts: Path) -> None:
    report = measured(prompts, "--limit", "1", "--temperature", "0,0.9")
    assert len(report["rows"]) == 12
    assert all(row["identical"] == 1.0 for row in report["rows"])


def test_sweeps_as_option_and_as_words(prompts: Path) -> None:
    report = measured(
        prompts, "--methods", "dartree", "--limit", "1", "--sweep", "budget=4,8", "width=2,3"
    )
    assert [row["variant"] for row in report["rows"]] == [
        "ar",
        *("dartree B=4 W=2", "dartree B=4 W=3", "dartree B=8 W=2", "dartree B=8 W=3"),
    ]
    assert report["best"][0]["flags"].startswith("--method ")


def test_the_best_methods_command_samples_as_measured(prompts: Path) -> None:
    words = ("--methods", "dartree", "--limit", "1", "--temperature", "0,0.9")
    cold, warm = measured(prompts, *words, "--top-k", "40", "--seed", "3")["best"]
    assert "--temperature" not in cold["flags"]  # these models are greedy by themselves
    assert "--top-k" not in cold["flags"]
    assert warm["flags"].endswith(" --temperature 0.9 --top-k 40 --seed 3")


def test_peers_load_models_of_their_own(prompts: Path) -> None:
    report = measured(prompts, "--methods", "dflash,hf,hf-dflash,hf-assistant", "--limit", "1")
    assert [row["method"] for row in report["rows"]] == ["ar", "dflash", "hf", "hf-dflash"]
    assert all(row["identical"] == 1.0 for row in report["rows"])
    assert list(report["missing"]) == ["hf-assistant"]
    assert report["environment"]["peer_dtypes"] == {"hf": "float32", "hf-dflash": "float32"}


def test_reports_are_kept_shown_again_and_compared(prompts: Path, tmp_path: Path) -> None:
    kept, page = tmp_path / "r.json", tmp_path / "r.html"
    words = ("--methods", "dartree", "--limit", "2", "--output", str(kept), "--html", str(page))
    report = measured(prompts, *words)
    assert json.loads(kept.read_text()) == report
    assert page.read_text().startswith("<!doctype html>")
    text = invoke("--from", str(kept), "--compare", str(kept))
    assert text.exit_code == 0
    assert "dartree" in text.stdout
    assert "Against r.json" in text.stdout
    lines = list(csv.DictReader(io.StringIO(invoke("--from", str(kept), "--format", "csv").stdout)))
    assert [line["method"] for line in lines] == ["ar", "dartree"]
    before = kept.read_bytes()
    for words in (("--output", str(tmp_path / "s.json")), ("--html", str(kept))):
        refused = invoke("--from", str(kept), *words).exception
        assert isinstance(refused, ConfigError)
        assert "keeps no other" in refused.message
    assert kept.read_bytes() == before
    again = measured(prompts, "--methods", "dartree", "--limit", "2", "--compare", str(kept))
    assert [r["key"] for r in again["comparison"]["rows"]] == ["ar", "dartree budget=auto"]


def test_an_interrupted_run_goes_on_where_it_stopped(
    prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "r.json"
    words = [*MODELS, "--datasets", str(prompts), "--methods", "dartree", "-n", "24"]
    words += ["--output", str(kept), "--format", "json", "--quiet"]
    tell = Bench._tell

    def press_ctrl_c(self: Bench, what: str, done: int, *figures: Any) -> None:
        tell(self, what, done, *figures)
        if done == 2:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Bench, "_tell", press_ctrl_c)
    stopped = invoke(*words, "--limit", "4")
    assert stopped.exit_code == 130
    report = json.loads(stopped.stdout)
    assert (report["ended"], report["cases"], report["cases_planned"]) == ("interrupted", 2, 4)
    assert json.loads(kept.read_text()) == report
    monkeypatch.setattr(Bench, "_tell", tell)

    assert "--resume" in refused(*words).remedy
    assert "another settings" in refused(*words, "--resume", "--seed", "5").message
    finished = invoke(*words, "--resume", "--limit", "6")
    assert finished.exit_code == 0, finished.exception
    report = json.loads(finished.stdout)
    assert (report["ended"], report["cases"], report["complete"]) == ("", 6, True)
    journal = (tmp_path / "r.journal.jsonl").read_text().splitlines()
    assert len(journal) == 7


def test_an_earlier_report_is_not_written_over(
    prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "r.json"
    kept.write_text("earlier")
    monkeypatch.setattr("dartree_core.bundles.load", lambda *_, **__: pytest.fail("loaded"))
    error = refused("--datasets", str(prompts), "--output", str(kept))
    assert isinstance(error, ConfigError)
    assert "r.json holds an earlier report" in error.message
    assert "another --output" in error.remedy
    assert kept.read_text() == "earlier"


def test_a_run_that_measured_nothing_replaces_no_report(prompts: Path, tmp_path: Path) -> None:
    kept, page = tmp_path / "r.json", tmp_path / "r.html"
    page.write_text("earlier")
    words = [*MODELS, "--datasets", str(prompts), "--methods", "ar", "-n", "4", "--quiet"]
    words += ["--output", str(kept), "--html", str(page), "--max-minutes", "0"]
    error = refused(*words)
    assert "time limit came before the first prompt" in error.message
    assert "--max-minutes" in error.remedy
    kept.write_text("earlier")
    refused(*words, "--resume")
    assert kept.read_text() == page.read_text() == "earlier"


def test_figures_are_shown_and_kept_apart_from_each_other(
    prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, page = tmp_path / "r.json", tmp_path / "r.html"
    words = [*MODELS, "--datasets", str(prompts), "--limit", "1", "--methods", "ar", "-n", "4"]
    words += ["--format", "json", "--quiet"]

    def full(self: Path, target: Path) -> Path:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        lost = invoke(*words, "--output", str(kept))
    assert isinstance(lost.exception, DARTreeError)
    assert json.loads(lost.stdout)["cases"] == 1
    assert "--resume" in lost.exception.remedy
    assert sorted(path.name for path in tmp_path.glob("r.*")) == ["r.journal.jsonl"]

    def closed(*_: Any) -> None:
        raise BrokenPipeError

    with monkeypatch.context() as patch:
        patch.setattr("dartree_core.cli.bench_show.print_json", closed)
        patch.setattr(Bench, "_case", lambda *_: pytest.fail("measured again"))
        cut = invoke(*words, "--output", str(kept), "--html", str(page), "--resume")
    assert isinstance(cut.exception, BrokenPipeError)
    assert json.loads(kept.read_text())["cases"] == 1
    assert page.exists()


def test_progress_goes_to_standard_error(prompts: Path) -> None:
    found = invoke(*MODELS, "--datasets", str(prompts), "--methods", "ar", "--limit", "1")
    assert found.exit_code == 0, found.exception
    assert "warming up" in found.stderr
    assert "warming up" not in found.stdout
    assert "Temperature 0" in found.stdout


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--methods", "eagle"], "eagle"),
        (["--budget", "0"], "budget"),
        (["--sweep", "colour=1"], "colour"),
        (["stray"], "stray"),
        (["--temperature", "-1"], "temperature"),
        (["--temperature", "warm"], "warm"),
        (["--datasets", "gsm9k"], "gsm9k"),
        (["--datasets", ","], "data set"),
        (["--datasets", "builtin:0"], "builtin"),
        (["--datasets", "builtin", "--data-dir", "/nowhere"], "nowhere"),
        (["--resume"], "--resume"),
        (["--resume", "--output", "none.json"], "none.journal.jsonl"),
        (["--output", "no/where.json"], "folder no"),
        (["--html", "no/where.html"], "folder no"),
        (["--output", "/"], "/ is no file"),
        (["--html", "/"], "/ is no file"),
        (["--output", "/proc/r.json"], "folder /proc"),
        (["--compare", "none.json"], "none.json"),
        (["--from", "none.json"], "none.json"),
        (["--max-new-tokens", "0"], "max_new_tokens"),
        (["--seed", "-1"], "seed"),
        (["--target", "Qwen/Qwen3-32B", "--methods", "dartree"], "no drafter for Qwen/Qwen3-32B"),
        (["--system", "caf\udce9"], "system prompt cannot be read"),
    ],
)
def test_mistakes_are_named_before_models_load(
    words: list[str], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dartree_core.bundles.load", lambda *_, **__: pytest.fail("loaded"))
    error = refused(*words)
    assert named in error.message
    assert isinstance(error, ConfigError)


def test_text_needs_a_tokenizer() -> None:
    assert "tokenizer" in refused(*MODELS, "--quiet").message


def test_a_run_in_which_everything_fails_fails(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps({"prompt_ids": [4] * 600}) + "\n")
    found = invoke(*MODELS, "--datasets", str(path), "--methods", "ar", "--quiet")
    assert isinstance(found.exception, DARTreeError)
    assert "600 tokens" in found.stdout

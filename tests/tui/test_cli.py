"""The command line, as a program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dartree_tui.cli import main
from tests.tui.driving import fake_trace


def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dartree_tui", *words],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        env={**os.environ, **env},
    )


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return fake_trace(tmp_path / "run.jsonl")


def test_help_and_version() -> None:
    done = run("--help")
    assert done.returncode == 0
    for option in ("--replay", "--screenshot", "--worker", "--record", "--serve", "--theme"):
        assert option in done.stdout
    assert run("--version").stdout.startswith("dartree-tui ")


HEAVY = "'torch', 'transformers', 'numpy', 'huggingface_hub'"
ROOMS = (
    "app, cli, client, commands, compare, conversation, settings, store, screenshot, "
    "engines.process, engines.replay, screens.compare, screens.dialogs, screens.find, "
    "screens.help, screens.lost, screens.main, screens.models, screens.saved, screens.settings"
)


def test_the_app_never_imports_a_model_library() -> None:
    code = (
        "import sys, importlib\n"
        f"for room in '{ROOMS}'.split(', '): importlib.import_module('dartree_tui.' + room)\n"
        f"print([m for m in ({HEAVY}) if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_help_imports_no_screen() -> None:
    code = (
        "import sys\nfrom dartree_tui.cli import parser\nparser().format_help()\n"
        "print([m for m in ('textual', 'rich', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize(
    "env", [{}, {"NO_COLOR": "1"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}, {"TERM": "xterm"}], ids=str
)
def test_a_screenshot_of_a_round(tmp_path: Path, trace: Path, env: dict[str, str]) -> None:
    out = tmp_path / "out.svg"
    done = run(
        "--replay", str(trace), "--screenshot", str(out), "--size", "100x30", "--round", "3", **env
    )
    assert done.returncode == 0, done.stderr
    text = out.read_text(encoding="utf-8").replace("&#160;", " ")
    assert text.startswith("<svg")
    assert "round 3/" in text
    assert "drafter" in text


def test_a_screenshot_of_a_stream(tmp_path: Path, trace: Path) -> None:
    out = tmp_path / "out.svg"
    done = subprocess.run(
        [sys.executable, "-m", "dartree_tui", "--replay", "-", "--screenshot", str(out)],
        input=trace.read_bytes(),
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "REPLAY" in out.read_text(encoding="utf-8")


WRONG = [
    (["--replay", "missing.jsonl"], 1, "missing.jsonl"),
    (["--round", "3"], 2, "--replay"),
    (["--screenshot", "x.svg"], 2, "--replay"),
    (["--replay", "TRACE", "--record", "x.jsonl"], 2, "--record cannot"),
    (["--replay", "TRACE", "--round", "0"], 2, "counted from 1"),
    (["--replay", "TRACE", "--size", "huge"], 2, "120x40"),
    (["--replay", "TRACE", "--screenshot", "x.svg", "--round", "9999"], 2, "rounds"),
    (["--replay", "TRACE", "--screenshot", "/no/such/folder/x.svg"], 1, "cannot be written"),
    (["--settings", "missing.toml"], 2, "--print-settings"),
    (["--serve", "--replay", "-"], 2, "--serve"),
    (["--worker", "ssh 'gpu1"], 2, "Close its quotes"),
    (["--no-such-option"], 2, "--no-such-option"),
]


@pytest.mark.parametrize(("words", "code", "said"), WRONG, ids=lambda v: str(v)[:40])
def test_wrong_usage_is_explained(
    words: list[str],
    code: int,
    said: str,
    trace: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as caught:
        main([str(trace) if word == "TRACE" else word for word in words])
    assert caught.value.code == code
    printed = capsys.readouterr().err
    assert said in printed
    assert "Traceback" not in printed


def test_a_damaged_trace_is_named_after_its_picture(
    tmp_path: Path, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace.write_bytes(trace.read_bytes() + b"oops\n")
    with pytest.raises(SystemExit) as caught:
        main(["--replay", str(trace), "--screenshot", str(tmp_path / "x.svg")])
    assert caught.value.code == 1
    assert "not valid JSON" in capsys.readouterr().err


def test_printed_settings_are_a_settings_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--print-settings", "--bundle", "other", "--theme", "dartree-light"])
    file = tmp_path / "mine.toml"
    file.write_text(capsys.readouterr().out, encoding="utf-8")
    main(["--print-settings", "--settings", str(file)])
    assert 'bundle = "other"' in capsys.readouterr().out


def test_a_bad_setting_is_refused_before_a_screen_opens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DARTREE_TUI_BUDGET", "lots")
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2
    assert "DARTREE_TUI_BUDGET" in capsys.readouterr().err


def test_serving_passes_the_other_options_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, str, int]] = []

    class Server:
        def __init__(self, command: str, host: str, port: int, title: str) -> None:
            seen.append((command, host, port))

        def serve(self) -> None:
            pass

    import textual_serve.server

    monkeypatch.setattr(textual_serve.server, "Server", Server)
    main(["--serve", "--port", "9001", "--host=0.0.0.0", "--bundle", "demo", "--no-load"])
    command, host, port = seen[0]
    assert command == f"{sys.executable} -m dartree_tui --bundle demo --no-load"
    assert (host, port) == ("0.0.0.0", 9001)

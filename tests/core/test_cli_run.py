"""`dartree run` and `dartree verify`, on a tiny target with a real tokenizer."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dartree_core.cli import main, run
from dartree_core.cli.options import ModelChoice
from dartree_core.cli.outcome import Outcome
from dartree_core.cli.report import print_report
from dartree_core.config import DecodeConfig
from dartree_core.engine import Session
from dartree_core.events import FinishReason, TurnFinished
from tests.core import tiny

PROMPT = "to be or not"


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options that name a conformance pair with a byte-level tokenizer and chat template."""
    folder = tmp_path_factory.mktemp("models")
    target = folder / "target"
    shutil.copytree(tiny.CHECKPOINTS / "target_tied", target)
    tiny.tokenizer().save_pretrained(target)
    draft = tiny.CHECKPOINTS / "draft_tied_p0_s0"
    return ["--target", str(target), "--draft", str(draft), "--dtype", "float32"]


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def dartree(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process: exit code, standard output, standard error."""

    def run(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def test_json_says_everything(dartree: Run, models: list[str]) -> None:
    code, out, _ = dartree(
        "run", PROMPT, *models, "-n", "24", "--budget", "8", "--compare-ar", "--format", "json"
    )
    found = json.loads(out)
    assert code == 0
    assert len(found["token_ids"]) == 24
    assert found["finish_reason"] == "length"
    assert found["method"] == found["config"]["method"] == "dartree"
    assert found["config"]["tree"]["budget"] == 8
    metrics = found["metrics"]
    assert metrics["num_emitted_tokens"] == 24
    assert len(metrics["per_step_accepted"]) == metrics["num_spec_steps"]
    assert {"load_s", "prefill_s", "ttft_s", "decode_s"} <= found["timings"].keys()
    compare = found["compare"]
    assert compare["identical"] is True
    assert compare["speedup"] == pytest.approx(
        compare["tokens_per_second"] / compare["ar_tokens_per_second"], abs=1e-3
    )


def test_text_goes_out_and_figures_to_the_side(dartree: Run, models: list[str]) -> None:
    _, plain, _ = dartree("run", PROMPT, *models, "-n", "16", "--method", "ar", "--quiet")
    code, out, err = dartree("run", PROMPT, *models, "-n", "16", "--budget", "16")
    assert code == 0
    assert out == plain
    assert "tokens a round" in err


def test_quiet_is_quiet(dartree: Run, models: list[str]) -> None:
    _, _, err = dartree("run", PROMPT, *models, "-n", "4", "--quiet")
    assert err == ""


def test_every_way_to_give_a_prompt_is_the_same(
    dartree: Run, models: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text(PROMPT, encoding="utf-8")
    wanted = dartree("run", PROMPT, *models, "-n", "8", "-q")[1]
    assert dartree("run", "--file", str(file), *models, "-n", "8", "-q")[1] == wanted
    for words in (["-"], []):
        monkeypatch.setattr(sys, "stdin", io.StringIO(PROMPT + "\n"))
        assert dartree("run", *words, *models, "-n", "8", "-q")[1] == wanted


def test_the_event_stream_is_the_trace(dartree: Run, models: list[str], tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl.gz"
    words = ["run", PROMPT, *models, "-n", "12", "--budget", "8", "--detail", "full"]
    code, out, _ = dartree(*words, "--format", "jsonl", "--trace", str(file))
    assert code == 0
    streamed = [json.loads(line) for line in out.splitlines()]
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        recorded = [json.loads(line) for line in lines]
    assert streamed == recorded
    assert recorded[0]["kind"] == "RunStarted"
    assert recorded[-1]["kind"] == "TurnFinished"
    rounds = [r for r in recorded if r["kind"] == "RoundDone"]
    assert all("target_logp" in r["tree"] for r in rounds)
    if os.name == "posix":
        assert file.stat().st_mode & 0o777 == 0o600


def test_stop_strings_and_system_prompt(dartree: Run, models: list[str]) -> None:
    whole = json.loads(dartree("run", PROMPT, *models, "-n", "24", "--format", "json")[1])
    text = whole["text"]
    stop = text[3:6]
    cut = json.loads(
        dartree("run", PROMPT, *models, "-n", "24", "--stop", stop, "--format", "json")[1]
    )
    assert cut["text"] == text[: text.index(stop)]
    assert cut["finish_reason"] == "stop_string"
    header = json.loads(
        dartree("run", PROMPT, *models, "-n", "1", "--system", "Be brief.", "--format", "jsonl")[
            1
        ].splitlines()[0]
    )
    decoded = tiny.tokenizer().decode(header["prompt_ids"])
    assert "Be brief." in decoded
    assert decoded.index("Be brief.") < decoded.index(PROMPT)


@pytest.mark.parametrize(
    ("words", "fault", "remedy"),
    [
        (["--method", "magic"], "no method 'magic'", "dartree-fixed"),
        (["--budget", "0"], "budget is 0", "Set budget to 1 or more"),
        (["--budget", "lots"], "budget is 'lots'", "--budget 16"),
        (["--temperature", "-1"], "temperature is -1", "Use 0 for greedy"),
        (["--top-p", "0"], "top_p is 0", "above 0"),
        (["--depth-bonus", "0.5"], "depth_bonus is 0.5", "0 or a negative"),
        (["--max-new-tokens", "0"], "max_new_tokens is 0", "1 or more"),
        (["--block-size", "99"], "block_size 99", "Use 8 or less"),
        (["--device", "abacus"], "abacus", "cpu"),
        (["--dtype", "int3"], "no dtype 'int3'", "float32"),
        (["--seed", "-3"], "seed is -3", "--seed 0"),
        (["--raw", "--system", "x"], "--system needs", "prompt itself"),
        (["--file", "x"], "Both a prompt and --file", "one of them"),
    ],
)
def test_bad_settings_are_named(
    dartree: Run, models: list[str], words: list[str], fault: str, remedy: str
) -> None:
    # A later option overrides an earlier one, so the models' own dtype does not hide the fault.
    code, out, err = dartree("run", PROMPT, *models, *words)
    assert code == 2
    assert out == ""
    assert fault in err
    assert remedy in err
    assert "Traceback" not in err


def test_debug_shows_where(models: list[str]) -> None:
    from dartree_core.errors import ConfigError

    with pytest.raises(ConfigError):
        main(["run", PROMPT, *models, "--method", "magic", "--debug"])


def test_a_drafting_method_without_a_drafter_is_refused(dartree: Run, models: list[str]) -> None:
    code, _, err = dartree("run", PROMPT, models[0], models[1], "--draft", "none")
    assert code == 2
    assert "--draft" in err
    assert "--method ar" in err


def test_no_prompt_at_all(dartree: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    code, _, err = dartree("run")
    assert code == 2
    assert "There is no prompt" in err


def test_standard_input_that_is_closed_holds_no_prompt(
    dartree: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    for words in ([], ["-"]):
        code, _, err = dartree("run", *words)
        assert code == 2
        assert "There is no prompt" in err


@pytest.mark.parametrize(
    ("words", "stdin", "what"),
    [
        (["caf\udce9"], b"", "The prompt"),
        ([PROMPT, "--system", "caf\udce9"], b"", "The system prompt"),
        (["-"], b"caf\xe9", "Standard input"),
        ([], b"caf\xe9", "Standard input"),
    ],
)
def test_text_that_is_not_utf_8_is_refused(
    dartree: Run, monkeypatch: pytest.MonkeyPatch, words: list[str], stdin: bytes, what: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
    code, _, err = dartree("run", *words)
    assert code == 2
    assert f"{what} cannot be read" in err
    assert "Give UTF-8 text." in err


def test_output_that_the_locale_cannot_say_is_escaped(
    models: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def printed(encoding: str, *more: str) -> bytes:
        out = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding=encoding))
        with pytest.raises(SystemExit) as ended:
            main(["run", PROMPT, *models, "-n", "24", "--quiet", *more])
        assert not ended.value.code
        sys.stdout.flush()
        return out.getvalue()

    text = printed("utf-8").decode()
    assert not text.isascii()
    assert printed("ascii") == text.encode("ascii", "backslashreplace")
    found = json.loads(printed("ascii", "--format", "json"))
    assert found["text"] + "\n" == text


def test_seeded_sampling_does_not_depend_on_the_method(dartree: Run, models: list[str]) -> None:
    sampled = ["-n", "24", "--temperature", "0.9", "--top-k", "50", "--format", "json"]

    def ids(*words: str) -> list[int]:
        found: dict[str, Any] = json.loads(dartree("run", PROMPT, *models, *sampled, *words)[1])
        return list(found["token_ids"])

    plain = ids("--method", "ar", "--seed", "5")
    assert ids("--budget", "16", "--seed", "5") == plain
    assert ids("--method", "ddtree", "--budget", "4", "--seed", "5") == plain
    assert ids("--method", "ar", "--seed", "6") != plain


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_keeps_what_was_generated(models: list[str], tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    words = ["run", PROMPT, *models, "-n", "400", "--budget", "4", "--trace", str(file)]
    child = subprocess.Popen(
        [sys.executable, "-m", "dartree_core", *words, "--format", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if file.exists() and file.read_bytes().count(b'"RoundDone"') >= 2:
            break
        time.sleep(0.005)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130, err.decode()
    found = json.loads(out)
    assert found["finish_reason"] == "cancelled"
    assert 0 < len(found["token_ids"]) < 400
    last = json.loads(file.read_text(encoding="utf-8").splitlines()[-1])
    assert last["kind"] == "TurnFinished"
    assert last["token_ids"] == found["token_ids"]


def test_ctrl_c_before_the_first_token_is_reported(
    dartree: Run, models: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    listening = run._cancel_on_interrupt

    @contextmanager
    def pressed(sessions: list[Session]) -> Iterator[None]:
        with listening(sessions):
            signal.raise_signal(signal.SIGINT)
            yield

    monkeypatch.setattr(run, "_cancel_on_interrupt", pressed)
    code, out, err = dartree("run", PROMPT, *models, "-n", "8", "--compare-ar")
    assert (code, out) == (130, "\n")
    assert "ended by you; first token after -" in err
    assert "no tokens to compare" in err
    code, out, _ = dartree("run", PROMPT, *models, "-n", "8", "--compare-ar", "--format", "json")
    assert code == 130
    assert json.loads(out)["compare"]["identical"] is None


@pytest.mark.parametrize(
    ("ours", "plain", "identical", "said"),
    [
        (("cancelled", (5, 6, 7)), ("cancelled", (5, 6)), True, "the same tokens in the 2"),
        (("cancelled", (5, 6)), ("length", (5, 6, 7)), True, "the same tokens in the 2"),
        (("cancelled", (5, 9)), ("length", (5, 6, 7)), False, "DIFFERENT tokens in the 2"),
        (("eos", (5, 6)), ("cancelled", (5, 6, 7)), False, "DIFFERENT tokens in the 2"),
        (("cancelled", ()), ("cancelled", (5,)), None, "no tokens to compare"),
        (("eos", (5, 6)), ("eos", (5, 6)), True, "the same tokens"),
        (("eos", (5, 6)), ("length", (5, 6, 7)), False, "DIFFERENT tokens"),
    ],
)
def test_turns_that_were_cancelled_are_compared_as_far_as_they_got(
    capsys: pytest.CaptureFixture[str],
    ours: tuple[FinishReason, Sequence[int]],
    plain: tuple[FinishReason, Sequence[int]],
    identical: bool | None,
    said: str,
) -> None:
    outcome = Outcome(DecodeConfig())
    outcome.finished = TurnFinished(0, ours[0], "", ours[1])
    outcome.plain = TurnFinished(0, plain[0], "", plain[1])
    comparison = outcome.comparison()
    assert comparison is not None
    assert comparison["identical"] is identical
    print_report(outcome)
    assert said in " ".join(capsys.readouterr().err.split())


def test_verify_accepts_a_true_trace(dartree: Run, models: list[str], tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    dartree("run", PROMPT, *models, "-n", "16", "--temperature", "0.7", "--trace", str(file))
    code, out, _ = dartree("verify", str(file), *models, "--format", "json")
    found = json.loads(out)
    assert code == 0
    assert found["identical"] is True
    assert found["first_divergence"] is None
    assert found["tokens"] == 16


def test_verify_finds_a_forged_token(dartree: Run, models: list[str], tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    dartree("run", PROMPT, *models, "-n", "16", "--trace", str(file))
    lines = file.read_text(encoding="utf-8").splitlines()
    finished = json.loads(lines[-1])
    finished["token_ids"][5] = (finished["token_ids"][5] + 1) % 500
    file.write_text("\n".join([*lines[:-1], json.dumps(finished)]) + "\n", encoding="utf-8")
    code, out, _ = dartree("verify", str(file), *models, "--format", "json")
    found = json.loads(out)
    assert code == 1
    assert found["diverged"] is True
    assert found["first_divergence"]["index"] == 5
    assert found["first_divergence"]["margin"] > 0
    code, out, _ = dartree("verify", str(file), *models)
    assert code == 1
    assert "a real divergence" in out


def test_verify_decodes_a_prompt_itself(dartree: Run, models: list[str]) -> None:
    code, out, _ = dartree("verify", "--prompt", PROMPT, *models, "--max-new-tokens", "12")
    assert code == 0
    assert "12 tokens, all as plain decoding chooses" in out


def test_verify_wants_the_models_of_the_trace(
    dartree: Run, models: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "run.jsonl"
    dartree("run", PROMPT, *models, "-n", "4", "--trace", str(file))
    header, *rest = file.read_text(encoding="utf-8").splitlines()
    changed = json.loads(header)
    changed["target"]["name"] = "another-model"
    file.write_text("\n".join([json.dumps(changed), *rest]) + "\n", encoding="utf-8")
    code, _, err = dartree("verify", str(file), *models)
    assert code == 2
    assert "another-model" in err


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--method", "magic"], "no method 'magic'"),
        (["--budget", "lots"], "budget is 'lots'"),
        (["--temperature", "-1"], "temperature is -1"),
        (["--target", "Qwen/Qwen3-32B"], "no drafter for Qwen/Qwen3-32B"),
        (["--prompt", " "], "The prompt is empty"),
        (["--prompt", "caf\udce9"], "The prompt cannot be read"),
    ],
)
def test_verify_names_mistakes_before_models_load(
    dartree: Run, monkeypatch: pytest.MonkeyPatch, words: list[str], fault: str
) -> None:
    monkeypatch.setattr("dartree_core.bundles.load", lambda *_, **__: pytest.fail("loaded"))
    code, _, err = dartree("verify", "--prompt", PROMPT, *words)
    assert code == 2
    assert fault in " ".join(err.split())


@pytest.mark.parametrize(
    "words", [["--method", "ar"], ["--temperature", "0"], ["--max-new-tokens", "256"], ["--raw"]]
)
def test_settings_beside_a_trace_are_refused(dartree: Run, words: list[str]) -> None:
    code, _, err = dartree("verify", "run.jsonl", *words)
    assert code == 2
    assert f"{words[0]} does not apply to a trace" in err
    assert "--prompt" in err


@pytest.mark.parametrize(("place", "fault"), [("no/run.jsonl", "folder no does"), ("/", "/ is no")])
def test_a_trace_that_cannot_be_written_is_refused_before_models_load(
    dartree: Run, monkeypatch: pytest.MonkeyPatch, place: str, fault: str
) -> None:
    monkeypatch.setattr("dartree_core.bundles.load", lambda *_, **__: pytest.fail("loaded"))
    code, _, err = dartree("run", PROMPT, "--trace", place)
    assert code == 2
    assert fault in err
    assert "--trace" in err


def test_notes_of_the_load_are_told_once_and_recorded(
    dartree: Run, models: list[str], tmp_path: Path
) -> None:
    target = models[: models.index("--draft")]
    trace = tmp_path / "run.jsonl"
    given = ("run", PROMPT, *target, "--method", "ar", "-n", "2")
    code, _, err = dartree(*given, "--trace", str(trace))
    assert code == 0
    assert err.count("No drafter is used") == 1
    assert "No drafter is used" in json.loads(trace.read_text().splitlines()[0])["notes"][0]
    _, _, err = dartree(*given, "--quiet")
    assert err == ""
    _, out, _ = dartree("trace", str(trace))
    assert "No drafter is used" in " ".join(out.split())


def test_thinking_in_raw_mode_is_told_of_truthfully(dartree: Run, models: list[str]) -> None:
    _, _, err = dartree("run", PROMPT, *models, "-n", "2", "--raw", "--thinking")
    assert "--raw leaves the chat template out" in err
    assert "no thinking switch" not in err


def test_no_drafter_and_a_drafting_method_are_refused_before_anything_loads(dartree: Run) -> None:
    words = ("--target", "/no/such/folder", "--draft", "none", "--method", "domino")
    code, _, err = dartree("run", PROMPT, *words)
    assert code == 2
    assert "Method 'domino' drafts, but --draft none asks for no drafter." in err


@pytest.mark.parametrize("target", ["Qwen/Qwen3-32B", "Qwen/Qwen3-4B@main", "folder"])
def test_a_target_that_no_bundle_pairs_is_refused_before_anything_loads(
    dartree: Run, models: list[str], monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.setattr("dartree_core.bundles.load", lambda *_, **__: pytest.fail("loaded"))
    target = models[1] if target == "folder" else target
    code, _, err = dartree("run", PROMPT, "--target", target)
    assert code == 2
    assert f"bundle demo has no drafter for {target}" in " ".join(err.split())
    assert "--draft" in err
    assert "--method ar" in err


@pytest.mark.parametrize(
    ("bundle", "target"),
    [
        ("demo", "HuggingFaceTB/SmolLM2-135M-Instruct"),
        ("qwen3-4b", "Qwen/Qwen3-4B@main"),
        ("qwen3-4b-dspark", "Qwen/Qwen3-4B"),
        ("demo", "./no-such-folder"),
    ],
)
def test_targets_that_a_bundle_may_pair_are_left_to_the_loading(bundle: str, target: str) -> None:
    ModelChoice(bundle, target).check("dartree")

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from dartree_core.bench.quality import final_answer, measure_of, same_answer, score
from dartree_core.bench.records import Row
from dartree_core.bench.sandbox import Verdict, run_python


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("So \\boxed{12} it is.", "12"),
        ("\\boxed{1} no, \\boxed{\\frac{5}{14}}", "\\frac{5}{14}"),
        ("\\boxed{a}}", "a"),
        ("4 + 5 = 9 apples", "9"),
        ("costs $1,250.50 in all.", "1,250.50"),
        ("It is -3/4", "-3/4"),
        ("\\boxed{unclosed", None),
        ("none", None),
    ],
)
def test_final_answers(text: str, answer: str | None) -> None:
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    ("given", "reference", "same"),
    [
        ("12", "12", True),
        ("12.0", "12", True),
        ("1,200", "1200", True),
        ("\\$12", "12", True),
        ("12\\%", "12", True),
        ("\\dfrac{5}{14}", "5/14", True),
        ("\\frac{1}{2}", "0.5", True),
        ("\\left( 3, \\frac{\\pi}{2} \\right)", "(3,\\frac{\\pi}{2})", True),
        ("\\text{Monday}", "Monday", True),
        ("13", "12", False),
        ("-12", "12", False),
        ("x+1", "x-1", False),
        (None, "12", False),
    ],
)
def test_answers_are_compared_as_numbers_then_as_text(
    given: str | None, reference: str, same: bool
) -> None:
    assert same_answer(given, reference) is same


def test_only_rows_with_a_reference_for_boxed_answers_are_scored() -> None:
    row = Row("r", ("q",), data={"template": "math_boxed", "reference": "29"})
    assert score(row, "\\boxed{29}", run_code=False) == 1.0
    assert score(row, "\\boxed{28}", run_code=False) == 0.0
    assert score(Row("r", ("q",), data={"reference": "29"}), "29", run_code=False) is None


HUMANEVAL = Row(
    "h",
    ("q",),
    data={
        "question": "def double(x):\n    '''Twice x.'''\n",
        "entry_point": "double",
        "test": "def check(candidate):\n    assert candidate(2) == 4\n",
    },
)
MBPP = Row("m", ("q",), data={"test_list": ["assert double(2) == 4", "assert double(0) == 0"]})
RIGHT = "Here:\n```python\ndef double(x):\n    return 2 * x\n```\nDone."
WRONG = RIGHT.replace("2 * x", "3 * x")


@pytest.mark.parametrize("row", [HUMANEVAL, MBPP])
def test_programs_run_only_when_the_user_says_so(row: Row) -> None:
    assert score(row, RIGHT, run_code=False) is None
    assert measure_of(row, run_code=False) is None
    assert measure_of(row, run_code=True) == "tests pass"
    assert score(row, RIGHT, run_code=True) == 1.0
    assert score(row, WRONG, run_code=True) == 0.0
    assert score(row, "I cannot.", run_code=True) == 0.0


def test_an_answer_may_go_on_from_the_stub() -> None:
    assert score(HUMANEVAL, "    return 2 * x\n", run_code=True) == 1.0


@pytest.mark.parametrize(
    ("program", "verdict"),
    [
        ("assert 1 + 1 == 2", Verdict.PASSED),
        ("print('x' * 10)", Verdict.PASSED),
        ("assert 1 + 1 == 3", Verdict.FAILED),
        ("import sys; sys.exit(0)", Verdict.FAILED),
        ("import os; os._exit(0)", Verdict.FAILED),
        ("def f(:", Verdict.FAILED),
        ("input()", Verdict.FAILED),
        ("while True: pass", Verdict.TIMEOUT),
        ("import time; time.sleep(60)", Verdict.TIMEOUT),
    ],
)
def test_verdicts(program: str, verdict: Verdict) -> None:
    seconds = 2.0 if verdict is Verdict.TIMEOUT else 20.0
    assert run_python(program, seconds=seconds) is verdict


@pytest.mark.skipif(sys.platform != "linux", reason="the limits are Linux's")
@pytest.mark.parametrize(
    "program",
    [
        "x = bytearray(1 << 31)",
        "while True: print('x' * 100000)",
        "open('f', 'wb').write(b'0' * 2**22)",
    ],
)
def test_memory_and_disk_are_limited(program: str) -> None:
    assert run_python(program, seconds=20.0) is Verdict.FAILED


def test_programs_get_no_environment_and_an_empty_folder_that_goes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SECRET", "1")
    note = tmp_path / "where"
    program = (
        "import os\n"
        "assert 'SECRET' not in os.environ\n"
        "assert os.listdir('.') == []\n"
        f"open({str(note)!r}, 'w').write(os.getcwd())\n"
    )
    assert run_python(program) is Verdict.PASSED
    assert not Path(note.read_text()).exists()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_a_program_starts_ends_with_it(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    program = (
        "import subprocess, sys\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])\n"
        f"open({str(mark)!r}, 'w').write(str(p.pid))\n"
    )
    assert run_python(program, seconds=20.0) is Verdict.PASSED
    pid = int(mark.read_text())
    for _ in range(500):  # a signal takes a moment to arrive
        if not running(pid):
            return
        time.sleep(0.02)
    pytest.fail("it still runs")


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False

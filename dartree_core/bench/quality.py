"""Is an answer right? For rows that say what a right one is.

Lossless methods give plain decoding's answers, so their scores must be equal; the scores say
what kind of text the speed was measured on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from dartree_core.bench.records import Row
from dartree_core.bench.sandbox import Verdict, run_python

ANSWER_MATCH = "answer match"
TESTS_PASS = "tests pass"
_FENCE = re.compile(r"```(?:python|py)?[ \t]*\r?\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:/\d+)?")


def measure_of(row: Row, *, run_code: bool) -> str | None:
    """How answers to this row are judged, or None when they are not.

    Args:
        row: The row.
        run_code: Whether programs that the model wrote may be run.
    """
    if row.data.get("template") == "math_boxed" and row.data.get("reference") is not None:
        return ANSWER_MATCH
    return TESTS_PASS if run_code and program(row, "") is not None else None


def score(row: Row, answer: str, *, run_code: bool) -> float | None:
    """1 for a right answer, 0 for a wrong one, None where it is not judged.

    Args:
        row: The row with its reference or tests.
        answer: The model's text.
        run_code: Whether programs that the model wrote may be run.
    """
    measure = measure_of(row, run_code=run_code)
    if measure == ANSWER_MATCH:
        return float(same_answer(final_answer(answer), str(row.data["reference"])))
    if measure == TESTS_PASS:
        text = program(row, answer)
        assert text is not None
        return float(run_python(text) is Verdict.PASSED)
    return None


def final_answer(text: str) -> str | None:
    """The content of the last `\\boxed{}`, else the last number, else None."""
    start = text.rfind("\\boxed{")
    if start >= 0:
        depth = 0
        for i in range(start + len("\\boxed"), len(text)):
            depth += {"{": 1, "}": -1}.get(text[i], 0)
            if depth == 0:
                return text[start + len("\\boxed{") : i]
    numbers = _NUMBER.findall(text)
    return numbers[-1] if numbers else None


def same_answer(given: str | None, reference: str) -> bool:
    """Equal as numbers where both are, else as text without spaces and LaTeX decoration."""
    if given is None:
        return False
    ours, theirs = _plain(given), _plain(reference)
    numbers = _number(ours), _number(theirs)
    if None not in numbers:
        return numbers[0] == numbers[1]
    return ours == theirs


def program(row: Row, answer: str) -> str | None:
    """The answer's code with the row's tests behind it, or None for rows without tests."""
    data = row.data
    if data.get("test") and data.get("entry_point"):
        code = _code(answer)
        if f"def {data['entry_point']}" not in code:
            code = f"{data.get('question', '')}\n{code}"  # the model went on from the stub
        return f"{code}\n\n{data['test']}\n\ncheck({data['entry_point']})\n"
    if data.get("test_list"):
        lines = [*_lines(data, "test_imports"), _code(answer), *_lines(data, "test_list")]
        return "\n".join(lines) + "\n"
    return None


def _lines(data: Mapping[str, Any], key: str) -> list[str]:
    return [str(line) for line in data.get(key) or ()]


def _code(answer: str) -> str:
    blocks: list[str] = _FENCE.findall(answer)
    return "\n\n".join(blocks) if blocks else answer


def _plain(text: str) -> str:
    for old, new in (("\\dfrac", "\\frac"), ("\\tfrac", "\\frac"), ("\\left", ""), ("\\right", "")):
        text = text.replace(old, new)
    text = re.sub(r"\\text\{([^}]*)\}", r"\1", text)
    text = re.sub(r"\\frac\{(-?\d+)\}\{(\d+)\}", r"\1/\2", text)
    text = re.sub(r"\\[!,;: ]|\\\$|\$|\\%|%|\s", "", text)
    return text.rstrip(".")


def _number(text: str) -> Fraction | None:
    try:
        return Fraction(text.replace(",", ""))
    except (ValueError, ZeroDivisionError):
        return None

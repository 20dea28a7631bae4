"""From a data set's own rows to user turns, worded as the DARTree, DDTree and DFlash papers do.

A row that already says how it is wrapped (`template`), or has `turns`, is ready to send. A row
as its publisher ships it is wrapped here by the data set's name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

BOXED = "\nPlease reason step by step, and put your final answer within \\boxed{}."
_HUMANEVAL = (
    "Write a solution to the following problem and make sure that it passes the tests:\n"
    "```python\n{stub}\n```"
)
_LIVECODEBENCH = (
    "You are an expert Python programmer. You will be given a question (problem specification) "
    "and will generate a correct Python program that matches the specification and passes all "
    "tests. You will NOT return anything except for the program\n\n"
    "### Question:\n{question}\n\n"
    "### Format: {instruction}\n```python\n{code}\n```\n\n"
    "### Answer: (use the provided format with backticks)"
)
_STARTER = "Use the following code structure:"
_NO_STARTER = "Write your code in the following format:"

Raw: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Wrapped:
    """A raw row, ready to send.

    Attributes:
        turns: The user turns.
        data: What scoring needs: `reference`, `question`, `test`, ...
    """

    turns: tuple[str, ...]
    data: Mapping[str, Any]


def gsm8k(row: Raw) -> Wrapped:
    """`question`, `answer` ending in `#### number`."""
    answer = str(row.get("answer", ""))
    found = re.search(r"####\s*(.+)", answer)
    reference = found.group(1).strip().replace(",", "") if found else answer.strip()
    return _boxed(row["question"], reference)


def problem(row: Raw) -> Wrapped:
    """`problem` (or `question`) and `answer`: MATH-500, AIME."""
    return _boxed(row.get("problem", row.get("question")), row.get("answer"))


def humaneval(row: Raw) -> Wrapped:
    """`prompt` (the stub), `test`, `entry_point`."""
    data = {"question": row["prompt"], "test": row.get("test"), "entry_point": row["entry_point"]}
    return Wrapped((_HUMANEVAL.format(stub=row["prompt"]),), data)


def mbpp(row: Raw) -> Wrapped:
    """`text` (full set) or `prompt` (sanitized): the task alone, without its tests."""
    text = row.get("text") or row["prompt"]
    data = {"test_list": row.get("test_list"), "test_imports": row.get("test_imports") or []}
    return Wrapped((str(text),), data)


def mt_bench(row: Raw) -> Wrapped:
    """Two turns, under `turns` or `prompt`."""
    return Wrapped(tuple(row.get("turns") or row["prompt"]), {"category": row.get("category")})


def alpaca(row: Raw) -> Wrapped:
    """`instruction` and perhaps `input`; no preamble."""
    given = str(row.get("input") or "").strip()
    text = f"{row['instruction']}\n\nInput:\n{given}" if given else str(row["instruction"])
    return Wrapped((text,), {})


def livecodebench(row: Raw) -> Wrapped:
    """`question_content` and perhaps `starter_code`."""
    starter = row.get("starter_code")
    text = _LIVECODEBENCH.format(
        question=row["question_content"],
        instruction=_STARTER if starter else _NO_STARTER,
        code=starter or "# YOUR CODE HERE",
    )
    return Wrapped((text,), {})


def _boxed(question: Any, reference: Any) -> Wrapped:
    if not isinstance(question, str):
        raise KeyError("problem")
    data = {"question": question, "template": "math_boxed"}
    if reference is not None:
        data["reference"] = str(reference)
    return Wrapped((question + BOXED,), data)


FORMATS: dict[str, Callable[[Raw], Wrapped]] = {
    "gsm8k": gsm8k,
    "math500": problem,
    "aime24": problem,
    "aime25": problem,
    "humaneval": humaneval,
    "mbpp": mbpp,
    "mt-bench": mt_bench,
    "alpaca": alpaca,
    "livecodebench": livecodebench,
}
"""Data set to what turns its publisher's rows into prompts."""

_RAW_KEYS: dict[str, tuple[str, ...]] = {
    "gsm8k": ("question", "answer"),
    "math500": ("problem",),
    "aime24": ("problem",),
    "aime25": ("problem",),
    "humaneval": ("entry_point", "test", "prompt"),
    "mbpp": ("test_list",),
    "mt-bench": (),
    "alpaca": ("instruction",),
    "livecodebench": ("question_content",),
}


def wrap(name: str, row: Raw) -> Wrapped | None:
    """The row as the papers send it, or None when it is ready as it stands.

    Raises:
        KeyError: A field the data set's format needs is missing.
    """
    if name not in FORMATS or "template" in row:
        return None
    if "turns" in row or isinstance(row.get("prompt"), list):
        return mt_bench(row) if name == "mt-bench" else None
    if "prompt" in row and not all(key in row for key in _RAW_KEYS[name]):
        return None
    return FORMATS[name](row)

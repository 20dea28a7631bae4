"""What a user is told in passing, and in which words something is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["information", "warning", "error"]

Status = Literal["off", "loading", "ready", "busy", "calibrating", "comparing", "lost", "replay"]
"""`off`: nothing loaded; `busy`: a turn is decoded; `lost`: the worker is gone."""

AT_WORK = ("busy", "calibrating", "comparing")
"""What drawing must not slow down, least of all what is measured."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Something the user should know, once."""

    text: str
    severity: Severity = "information"


def refusal(status: Status, what: str) -> str:
    """Why `what` cannot be done now, and what would help."""
    match status:
        case "replay":
            return f"A replay cannot {what}: it shows what was recorded."
        case "lost":
            return "The worker is gone. Press ctrl+r to start another."
        case "off":
            return f"No model is loaded, so there is nothing to {what} with. f4 chooses one."
        case "loading":
            return f"The models are still loading; then you can {what}."
        case _:
            return f"The model is at work; esc stops it, then you can {what}."

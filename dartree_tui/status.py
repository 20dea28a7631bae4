"""What is going on, in a few words for the top line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dartree_core.events import LoadProgress
from dartree_tui.viewpoint import Viewpoint

if TYPE_CHECKING:
    from dartree_tui.client import Client


@dataclass(frozen=True, slots=True)
class Situation:
    """Words, and what kind of situation they describe (`live`, `held`, `busy`, `bad`, `idle`)."""

    text: str
    marker: str


def situation(client: Client, view: Viewpoint) -> Situation:
    """The one thing a user should know now."""
    store = client.store
    if client.status == "lost":
        return Situation("WORKER LOST  ctrl+r restarts", "bad")
    if client.status == "loading":
        return Situation(f"LOADING  {progress(client.loading)}", "busy")
    if client.stepping:
        return Situation("STEP  n stage  N round  s run on", "held")
    if view.frozen:
        behind = view.behind(store)
        return Situation(f"PAUSED{f'  +{behind} rounds' if behind else ''}  space", "held")
    if view.playing:
        return Situation("PLAYING  space stops", "live")
    if view.at is not None:
        stage = "" if view.frame is None else f" stage {view.frame + 1}"
        word = "REPLAY" if not client.engine.live else "BROWSING"
        return Situation(f"{word}  round {view.at + 1}/{len(store.marks)}{stage}", "held")
    match client.status:
        case "busy":
            return Situation("LIVE  esc stops", "live")
        case "calibrating":
            return Situation("MEASURING plain decoding", "busy")
        case "comparing":
            return Situation("COMPARING", "busy")
        case "replay":
            more = "" if client.complete else "  more to come"
            return Situation(f"REPLAY  {len(store.marks)} rounds{more}", "idle")
        case "off":
            return Situation("NO MODEL  f4 loads one", "held")
        case _:
            return Situation("READY", "idle")


def progress(step: LoadProgress | None) -> str:
    """`loading SmolLM2 2/3`, `downloading x 41 of 98 MB`."""
    if step is None:
        return "starting the worker"
    if step.total <= 0:
        return step.what
    if step.unit == "bytes":
        return f"{step.what}  {step.done / 1e6:.0f} of {step.total / 1e6:.0f} MB"
    return f"{step.what}  {step.done}/{step.total}"

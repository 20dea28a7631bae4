"""The top line: what decodes, with which settings, and what is going on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text
from textual.widgets import Static

from dartree_core.glyphs import fit
from dartree_tui.palette import Palette
from dartree_tui.widgets.visible import visible


class StatusLine(Static):
    """One line, rewritten when something changed."""

    DEFAULT_CSS = "StatusLine { height: 1; width: 1fr; background: $panel; padding: 0 1; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("", id=id, markup=False)
        self._shown: tuple[object, ...] = ()

    def show(self, models: str, settings: str, state: str, marker: str) -> None:
        """Write the line; what does not fit is left out from the middle.

        Args:
            models, settings: Left part, most important first.
            state: Right part, always shown.
            marker: `live`, `held`, `busy` or `bad`; decides emphasis, which the words repeat.
        """
        palette = Palette.of(self.app)
        width = self.size.width - 2
        shown = (models, settings, state, marker, width, palette)
        if shown == self._shown or width <= 0:
            return
        self._shown = shown
        styles: Mapping[str, Style] = {
            "live": palette.state["hit"],
            "held": palette.warning,
            "busy": palette.accent,
            "bad": palette.warning,
        }
        text = Text(style=palette.text)
        models, settings, state = map(visible, (models, settings, state))
        room = width - cell_len(state) - 1
        left = f"{models}   {settings}"
        if cell_len(left) > room:
            left = settings if cell_len(models) + 4 > room else left
        cut = min(cell_len(models), room) if left.startswith(models) else 0
        left = fit(left, max(0, room))
        text.append(left[:cut], palette.text)
        text.append(left[cut:], palette.dim)
        text.append(" " + state, styles.get(marker, palette.text) + Style(bold=True))
        self.update(text, layout=False)


def models_line(models: Mapping[str, Any]) -> str:
    """`SmolLM2-135M + demo drafter · cpu float32`."""
    if not models:
        return "no model"
    target = dict(models.get("target") or {}).get("name", "?")
    drafter = dict(models.get("drafter") or {}).get("name")
    place = " ".join(filter(None, (models.get("device"), models.get("dtype"))))
    return f"{target}{f' + {drafter}' if drafter else ''}" + (f" · {place}" if place else "")


def settings_line(config: Mapping[str, Any]) -> str:
    """`dartree B=64 W=12 β=−0.2 T=0`."""
    method = str(config.get("method", ""))
    tree, sampling = dict(config.get("tree", {})), dict(config.get("sampling", {}))
    parts = [method]
    if method not in ("ar", "dflash", "domino"):
        parts.append(f"B={tree.get('budget', '?')}")
    if method == "dartree":
        parts.append(f"W={tree.get('width', '?')}")
        beta = float(tree.get("depth_bonus", 0))
        parts.append(f"β={beta:g}".replace("-", "−"))
    temperature = float(sampling.get("temperature", 0))
    parts.append(f"T={temperature:g}")
    if temperature > 0:
        parts.append(f"seed={sampling.get('seed', 0)}")
    return " ".join(parts)

"""The garbage collector, kept from stopping the app.

Widgets, style rules and the modules behind them are a hundred thousand objects that live as long
as the app does. A full collection looks at each of them, a tenth of a second in which no frame is
drawn, and drawing makes enough short-lived objects to bring one about every ten or so.
"""

from __future__ import annotations

import gc

_YOUNG = 5_000
"""Objects made before the youngest are looked at; Python's own 700 are one line of a screen."""


def leave_alone_what_exists() -> None:
    """Collect once, and never look again at what is left; what comes later is still collected."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])

"""Key sequences terminals send that Textual does not tell apart by itself."""

from __future__ import annotations

from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
from textual.keys import Keys

ALT_ENTER = "\x1b\r"
"""What most terminals send for alt+enter."""


def teach() -> None:
    """Let alt+enter break the line in terminals without the kitty protocol.

    Textual reads the sequence as a plain enter, which would send an unfinished question; it is
    mapped to ctrl+j, the other key for a line break.
    """
    if isinstance(ANSI_SEQUENCES_KEYS, dict):
        ANSI_SEQUENCES_KEYS[ALT_ENTER] = (Keys.ControlJ,)

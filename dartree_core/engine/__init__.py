"""The decoding engine: a generator of events."""

from __future__ import annotations

from dartree_core.engine.decoder import Decoder
from dartree_core.engine.session import Session

__all__ = ["Decoder", "Session"]

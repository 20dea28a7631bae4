"""Fixtures for every test of the terminal app."""

from pathlib import Path

import pytest

from dartree_core.bundles import cache
from tests.tui.snapshots import snapshot

__all__ = ["snapshot"]


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's settings, history, logs or conversations.

    Models already fetched stay where they are.
    """
    monkeypatch.setenv(cache.ENV, str(cache.home()))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("CONFIG", "DATA", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.delenv("NO_COLOR", raising=False)

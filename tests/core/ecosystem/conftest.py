"""Measurements of these tests stay out of the user's cache."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="package")
def own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DARTREE_HOME", str(tmp_path_factory.mktemp("home")))
        yield

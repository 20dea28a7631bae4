"""How CUDA graphs are turned off, and how one learns whether they are on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from dartree_core import bundles
from dartree_core.cli import app, doctor
from dartree_core.errors import ConfigError
from dartree_core.models import load_target
from dartree_core.models.graphs import ENV
from tests.core import tiny


@pytest.mark.parametrize(("flag", "asked"), [("--graphs", None), ("--no-graphs", False)])
def test_run_asks_for_graphs_or_not(
    flag: str, asked: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def load(bundle: str, **options: Any) -> None:
        given.update(options)
        raise ConfigError("seen enough", "")

    monkeypatch.setattr(bundles, "load", load)
    CliRunner().invoke(app, ["run", flag, "hello"])
    assert given["graphs"] is asked


def test_a_loaded_target_is_static_where_asked() -> None:
    options: dict[str, Any] = {"device": torch.device("cpu"), "dtype": torch.float32, "lean": True}
    folder = tiny.CHECKPOINTS / "target_tied"
    assert load_target(folder, **options).graphs is None
    assert load_target(folder, graphs=True, **options).graphs is not None


@pytest.mark.parametrize("value", [None, "0"])
def test_doctor_says_whether_graphs_are_on(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = SimpleNamespace(name="Card", total_memory=24_000_000_000, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    monkeypatch.delenv(ENV, raising=False)
    if value is not None:
        monkeypatch.setenv(ENV, value)
    found = {f.name: f.value for section in doctor.examine() for f in section.findings}
    assert found["cuda graphs"].startswith("on" if value is None else f"off: {ENV} is '0'")
    assert found["fused kernels"]

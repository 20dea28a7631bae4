"""Loading models over a line: what is chosen counts once it is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dartree_core.events import LoadProgress, RunStarted
from dartree_core.worker_protocol import Load, Reply
from dartree_tui.engines import Engine
from dartree_tui.recall import same_tokens
from dartree_tui.settings import Settings
from dartree_tui.talk import Talk


class Loader(Talk):
    """A conversation, and the models that answer.

    Args:
        make_engine, settings, record: As in `Line`.

    Attributes, beside those of `Talk`:
        loading: How far loading is, while something loads.
    """

    def __init__(
        self, make_engine: Callable[[], Engine], settings: Settings, record: Path | None = None
    ) -> None:
        super().__init__(make_engine, settings, record)
        self.loading: LoadProgress | None = None

    def load(self, **choice: str) -> bool:
        """Load models: those of the settings, or these instead (`bundle`, `target`, …).

        The conversation goes on with them where they read its tokens, and another begins where
        they do not. A load that fails leaves conversation and settings as they were.
        """
        if not self._may("load a model", "off", "ready"):
            return False
        before = {name: getattr(self.settings.engine, name) for name in choice}
        if choice:
            self.settings = self.settings.changed("engine", **choice)
        engine = self.settings.engine
        self.status, self.models = "loading", {}
        request = Load(
            bundle=engine.bundle,
            target=engine.target or None,
            draft=engine.draft or None,
            device=engine.device,
            dtype=engine.dtype,
        )
        self._send(request, lambda reply: self._load_ended(reply, before))
        return True

    def _load_ended(self, reply: Reply, before: Mapping[str, str]) -> None:
        self.loading = None
        if reply.ok:
            self.status, self.models = "ready", dict(reply.result)
            self._take_over(chosen=bool(before))
        else:
            self.status = "off"
            self.settings = self.settings.changed("engine", **before)
        self._loaded(reply)

    def _take_over(self, chosen: bool) -> None:
        """What is loaded goes on with the conversation, if it reads its tokens."""
        if chosen:
            self.store.baseline = None  # measured on other models, or elsewhere
        run, target = self.store.run, self.models.get("target") or {}
        if self._foreign is not None:
            self._words = {}  # an opened conversation of another target; see `_foreign`
            self._home()
        elif run is not None and not same_tokens(run.target, target):
            self.new_conversation()
        elif self._words is not self.store.vocab.words:
            self._words = self.store.vocab.words  # an opened one meets its own target
            self._home()

    def _loaded(self, reply: Reply) -> None:
        """Loading has ended; `status`, `models` and `settings` say with what."""
        raise NotImplementedError


def models_of(run: RunStarted) -> dict[str, Any]:
    """What a header says of the models, in the form in which a worker says it after loading."""
    return {
        "bundle": run.bundle,
        "target": dict(run.target),
        "drafter": dict(run.drafter),
        "device": run.device,
        "dtype": run.dtype,
    }

"""The model picker: bundles known by name, or a target and drafter of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Input, OptionList, ProgressBar, Static
from textual.widgets.option_list import Option

from dartree_core.bundles import registry
from dartree_tui.screens.dialogs import Dialog
from dartree_tui.status import progress
from dartree_tui.widgets.status import models_line
from dartree_tui.widgets.visible import visible

if TYPE_CHECKING:
    from dartree_core.bundles.registry import Bundle


class ModelScreen(Dialog):
    """Choose what to load, and watch it load."""

    DEFAULT_CSS = """
    ModelScreen > .box { width: 88; height: 100%; max-height: 26; }
    ModelScreen .choice { height: 1fr; scrollbar-size-vertical: 1; }
    ModelScreen OptionList {
        height: 1fr; min-height: 3; margin: 0 0 1 0; border: none; background: transparent;
    }
    ModelScreen OptionList:focus { border: none; }
    ModelScreen .row { height: 1; }
    ModelScreen .label { width: 10; color: $dim; }
    ModelScreen .row Input { width: 1fr; }
    ModelScreen #now { color: $dim; height: auto; max-height: 2; }
    ModelScreen ProgressBar { margin: 0; width: 1fr; display: none; }
    ModelScreen Bar { width: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f4", "dismiss", "close", id="models.close")
    ]

    def compose(self) -> ComposeResult:
        """Bundles, the free choice, and progress."""
        engine = self.app.client.settings.engine
        box = Vertical(classes="box")
        box.border_title = "models"
        with box:
            with VerticalScroll(classes="choice", can_focus=False):
                yield OptionList(*(Option(_entry(b), id=b.name) for b in registry.bundles()))
                for name in ("target", "draft", "device", "dtype"):
                    with Horizontal(classes="row"):
                        yield Static(name, classes="label")
                        yield Input(
                            getattr(engine, name),
                            id=name,
                            compact=True,
                            placeholder=_PLACEHOLDERS.get(name, ""),
                        )
                yield Static(
                    "A target with other tokens starts another conversation: save this one with "
                    "ctrl+s first.",
                    classes="hint",
                )
            yield Static("", id="now", markup=False)
            yield ProgressBar(show_eta=False)
            yield Static("enter loads a bundle, or what is named; esc closes", classes="hint")

    def on_mount(self) -> None:
        """Start at the bundle that is chosen."""
        chosen = self.query_one(OptionList)
        names = registry.names()
        bundle = self.app.client.settings.engine.bundle
        chosen.highlighted = names.index(bundle) if bundle in names else 0
        chosen.focus()

    @on(OptionList.OptionSelected)
    def _bundle(self, event: OptionList.OptionSelected) -> None:
        self._load(bundle=str(event.option.id), target="", draft="")

    @on(Input.Submitted)
    def _own(self) -> None:
        self._load(**{n: self.query_one(f"#{n}", Input).value.strip() for n in ("target", "draft")})

    def _load(self, **choice: str) -> None:
        for name in ("device", "dtype"):
            choice[name] = self.query_one(f"#{name}", Input).value.strip() or "auto"
        self.app.client.load(**choice)

    async def paint(self) -> None:
        """Show what is loaded, or how far loading is."""
        client = self.app.client
        bar = self.query_one(ProgressBar)
        loading = client.status == "loading"
        step = client.loading if loading else None
        bar.display = loading
        if step is not None:
            bar.update(total=step.total or None, progress=step.done)
        text = progress(step) if loading else f"loaded: {models_line(client.models)}"
        self.query_one("#now", Static).update(visible(text))


_PLACEHOLDERS = {
    "target": "folder, GGUF file or hub id; empty takes the bundle's",
    "draft": "folder or hub id; 'none' decodes plainly; empty takes the bundle's",
}


def _entry(bundle: Bundle) -> str:
    notes = "".join(f"\n   [dim]{note}[/dim]" for note in bundle.notes)
    return f"[b]{bundle.name}[/b]  {bundle.description}{notes}"

"""Settings, live: every row says when a change counts."""

from __future__ import annotations

from dataclasses import Field
from typing import TYPE_CHECKING, Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Select, Static

from dartree_core.errors import ConfigError
from dartree_tui.settings import SAMPLING, applies, choices_of, options, parse_value
from dartree_tui.themed import theme_names

if TYPE_CHECKING:
    from dartree_tui.app import DartreeApp

_LEFT_OUT = {"frames_per_second", "system_prompt", "load_at_start", "calibrate", "worker"}
"""Options that make no sense to change from within: the file and the command line have them."""


class SettingsScreen(ModalScreen[None]):
    """One row an option; changes count at once, or from when the row says."""

    DEFAULT_CSS = """
    SettingsScreen { align: center middle; background: $background 60%; }
    SettingsScreen > VerticalScroll {
        width: 100; max-width: 100%; height: 90%; padding: 0 1; scrollbar-size-vertical: 1;
        background: $surface; border: round $primary;
        border-title-color: $foreground; border-subtitle-color: $dim;
    }
    SettingsScreen .section { text-style: bold; color: $accent; margin: 1 0 0 0; }
    SettingsScreen .row { height: 1; }
    SettingsScreen .name { width: 16; }
    SettingsScreen .when { width: 12; color: $dim; }
    SettingsScreen .help {
        width: 1fr; color: $dim; height: 1; text-overflow: ellipsis; text-wrap: nowrap; }
    SettingsScreen .row Input, SettingsScreen .row Select { width: 24; margin: 0 1 0 0; }
    SettingsScreen .row:focus-within { background: $panel; }
    SettingsScreen .fault { color: $error; height: auto; margin: 0 0 0 16; display: none; }
    SettingsScreen .row.-bad Input { color: $error; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f2", "close", "close", id="settings.close"),
        Binding("ctrl+s", "save", "save", priority=True, id="settings.save"),
        Binding("down", "app.focus_next", "next", show=False, id="settings.next"),
        Binding("up", "app.focus_previous", "previous", show=False, id="settings.previous"),
    ]

    app: DartreeApp

    def compose(self) -> ComposeResult:
        """A row for every option."""
        page = VerticalScroll(can_focus=False)
        page.border_title = "settings"
        page.border_subtitle = "esc closes  ·  ctrl+s writes the settings file"
        with page:
            section = ""
            for name, f, hint in options():
                if f.name in _LEFT_OUT:
                    continue
                if name != section:
                    section = name
                    yield Static(name, classes="section")
                with Horizontal(classes="row", id=f"row-{f.name}"):
                    yield Static(f.name.replace("_", " "), classes="name")
                    yield self._editor(name, f, hint)
                    yield Static(applies(name, f.name), classes="when")
                    yield Static(self._help(f), classes="help", markup=False)
                yield Static("", classes="fault", id=f"fault-{f.name}", markup=False)

    def _help(self, f: Field[Any]) -> str:
        asked = dict(self.app.client.models.get("sampling") or {})
        if f.name in SAMPLING and f.name in asked:
            return f"model: {asked[f.name]:g} for this one. {f.metadata['help']}"
        return str(f.metadata["help"])

    def _editor(self, section: str, f: Field[Any], hint: Any) -> Input | Select[Any]:
        value = getattr(getattr(self.app.client.settings, section), f.name)
        words = choices_of(hint)
        if f.name == "theme":
            words = tuple(theme_names(self.app))
        if words:
            chosen = value if value in words else words[0]
            return Select(
                [(w, w) for w in words], value=chosen, allow_blank=False, id=f.name, compact=True
            )
        if hint is bool:
            return Select(
                [("yes", True), ("no", False)],
                value=value,
                allow_blank=False,
                id=f.name,
                compact=True,
            )
        return Input(str(value), id=f.name, compact=True, select_on_focus=True)

    @on(Select.Changed)
    def _selected(self, event: Select.Changed) -> None:
        self._change(str(event.select.id), event.value)

    @on(Input.Submitted)
    @on(Input.Blurred)
    def _typed(self, event: Input.Submitted | Input.Blurred) -> None:
        self._take(event.input)

    def _take(self, field: Input) -> None:
        name = str(field.id)
        hint = next(h for _, f, h in options() if f.name == name)
        try:
            value = parse_value(field.value.strip(), hint, name.replace("_", " "))
        except ConfigError as error:
            self._fault(name, str(error))
            return
        self._change(name, value)

    def _change(self, name: str, value: Any) -> None:
        client = self.app.client
        section = next(s for s, f, _ in options() if f.name == name)
        if getattr(getattr(client.settings, section), name) == value:
            self._fault(name, "")
            return
        try:
            if section == "decode":
                client.change(**{name: value})
            elif section == "ui":
                self.app.apply_ui(**{name: value})
            else:
                client.settings = client.settings.changed(section, **{name: value})
        except ConfigError as error:
            self._fault(name, f"{error.message} {error.remedy}")
        else:
            self._fault(name, "")

    def _fault(self, name: str, words: str) -> None:
        line = self.query_one(f"#fault-{name}", Static)
        line.update(words.removeprefix("settings: [decode] "))
        line.display = bool(words)
        self.query_one(f"#row-{name}").set_class(bool(words), "-bad")

    def _faulty(self) -> set[str]:
        return {str(row.id).removeprefix("row-") for row in self.query(".row.-bad")}

    def _take_focused(self) -> None:
        """A value that is still being typed counts like one that was entered."""
        if isinstance(self.focused, Input):
            self._take(self.focused)

    def action_save(self) -> None:
        """Write the settings file, unless a value is faulty."""
        self._take_focused()
        if faulty := self._faulty():
            name = min(faulty).replace("_", " ")
            self.notify(f"Nothing was saved: {name} is faulty.", severity="error")
        else:
            self.app.save_settings()

    def action_close(self) -> None:
        """Close; a fault that has not been seen yet is shown first."""
        known = self._faulty()
        self._take_focused()
        if self._faulty() <= known:
            self.dismiss()

"""The terminal app."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

from textual import events
from textual.app import SystemCommand
from textual.binding import BindingType
from textual.screen import Screen
from textual.widgets import Input, TextArea

from dartree_core.errors import DARTreeError
from dartree_tui.answers import whole
from dartree_tui.beat import Beat
from dartree_tui.client import Client
from dartree_tui.clipboard import code_blocks, copy
from dartree_tui.commands import commands
from dartree_tui.engines import Engine, Lost
from dartree_tui.garbage import leave_alone_what_exists
from dartree_tui.hangup import CHECK_SECONDS, heed, keyboard, leave
from dartree_tui.history import History
from dartree_tui.notices import refusal
from dartree_tui.screens.keys import APP_BINDINGS
from dartree_tui.screens.main import MainScreen
from dartree_tui.settings import Settings, save_changes
from dartree_tui.terminal_keys import teach
from dartree_tui.themed import ThemedApp
from dartree_tui.widgets.visible import visible

_ALWAYS = {"quit", "suspend_process", "interrupt", "focus_next", "focus_previous"}


class DartreeApp(ThemedApp):
    """Owns the client and the beat; screens own the rest.

    Args:
        make_engine: See `Client`.
        settings: See `Client`.
        record: See `Client`.
        history: Past prompts.
        watch: Reload theme files when they change.
        settings_file: Where changed settings are saved; None for the default place.

    Attributes:
        beat: Looks at what came, and has it drawn.
        start_round: Round to show as soon as it is there, counted from 1 over all turns.
    """

    TITLE = "dartree"
    CSS_PATH = "screens/main.tcss"
    ENABLE_COMMAND_PALETTE = True
    ESCAPE_TO_MINIMIZE = False
    BINDINGS: ClassVar[list[BindingType]] = list(APP_BINDINGS)

    def __init__(
        self,
        make_engine: Callable[[], Engine],
        settings: Settings | None = None,
        *,
        record: Path | None = None,
        history: History | None = None,
        watch: bool = True,
        settings_file: Path | None = None,
    ) -> None:
        super().__init__()
        teach()
        self.client = Client(make_engine, settings or Settings(), record)
        self.beat = Beat(self)
        self._given = self.client.settings
        self.history = history or History()
        self.settings_file = settings_file
        self._watch = watch
        self._in_terminal = keyboard() is not None
        self._copied = -1
        self._rested = False
        self._told_loss: Lost | None = None
        self.start_round: int | None = None
        self.take_themes(self.client.settings.ui.theme)

    # Life

    def get_default_screen(self) -> MainScreen:
        """The main screen."""
        return MainScreen()

    @property
    def main(self) -> MainScreen:
        """The main screen, at the bottom of the stack."""
        screen = self.screen_stack[0]
        assert isinstance(screen, MainScreen)
        return screen

    def warn(self, text: str) -> None:
        """Queue a notice of what is wrong with a theme."""
        self.client.tell(text, "warning")

    def recoloured(self) -> None:
        """Draw everything in the new colours."""
        self.main.refresh_all()

    def on_mount(self) -> None:
        """Paint first, then start the engine."""
        self.set_keymap(dict(self.client.settings.keys))
        # The shell writes a line of its own when the app comes back from ctrl+z.
        self.app_resume_signal.subscribe(self, lambda _: self.set_timer(0.2, self._redraw_all))
        self.call_after_refresh(self._begin)
        pause = 1 / self.client.settings.ui.frames_per_second
        self.run_worker(self.beat.run(pause), group="beat")
        if self._in_terminal and not self.is_headless:
            self.set_interval(CHECK_SECONDS, self._end_without_terminal)
            heed(self._end)
        if self._watch:
            self.watch_themes()

    def _end(self, code: int) -> None:
        self.client.close()
        self.exit(return_code=code)

    def _end_without_terminal(self) -> None:
        if keyboard() is None:
            self.client.close()
            leave()

    def _redraw_all(self) -> None:
        self.screen.refresh(layout=True)

    def _begin(self) -> None:
        for name in sorted(set(self.client.settings.keys) - self.binding_ids()):
            self.client.tell(f"[keys] names no binding {name!r}; the help lists them.", "warning")
        self.client.start()

    def binding_ids(self) -> set[str]:
        """Names that `[keys]` may remap: those of all bindings on the main screen."""
        nodes = [self, self.main, *self.main.query("*")]
        return {b.id for node in nodes for _, b in node._bindings if b.id is not None}

    async def on_event(self, event: events.Event) -> None:
        """What the user does is looked at soon."""
        await super().on_event(event)
        if isinstance(event, events.InputEvent | events.Resize):
            self.beat.ring()

    def taken(self, seconds: float) -> None:
        """Records were taken in, and a frame comes next.

        Args:
            seconds: Since the last time.
        """
        while self.client.notices:
            notice = self.client.notices.popleft()
            self.notify(visible(notice.text), severity=notice.severity, timeout=8, markup=False)
        self._show_loss()
        main = self.main
        main.tick(seconds)
        if self.start_round is not None and len(self.client.store.marks) >= self.start_round:
            main.view.go(self.client.store, self.start_round - 1)
            main.refresh_all()
            self.start_round = None
        main.restore()
        if not self._rested and (self.client.status == "ready" or self.client.complete):
            self._rested = True  # models or a whole trace are loaded
            if self._in_terminal and not self.is_headless:  # elsewhere others share the process
                leave_alone_what_exists()

    def _show_loss(self) -> None:
        lost = self.client.lost
        if lost is not None and lost is not self._told_loss:
            from dartree_tui.screens.lost import LostScreen

            self._told_loss = lost
            log = getattr(self.client.engine, "log", "")
            self.push_screen(LostScreen(lost, str(log), self.client.cut_off))

    async def settle(self) -> None:
        """Paint until what is known is shown, for pictures and tests."""
        for _ in range(4):
            await self.beat.tick(whole=True)
            await asyncio.sleep(0.03)

    def on_unmount(self) -> None:
        """Whatever ends the app ends the worker."""
        self.client.close()

    async def action_quit(self) -> None:
        """Quit at once."""
        self.client.close()
        self.exit()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Nothing but leaving while nothing can be seen."""
        return action in _ALWAYS or not self.main.too_small

    async def run_main_action(self, action: str) -> None:
        """Run an action as if its key were pressed on the main screen."""
        target = self.main if action.startswith("screen.") else self
        await self.run_action(action.removeprefix("screen.").removeprefix("app."), target)

    # Actions that need no pane

    def action_interrupt(self) -> None:
        """Copy the selection; without one, stop what runs; else say how to quit."""
        focused = self.focused
        selected = self.screen.get_selected_text()
        if isinstance(focused, Input | TextArea):
            selected = selected or focused.selected_text
        if selected:
            copy(self, selected)
            self.notify("Copied the selection.")
        elif not self.client.stop():
            self.notify("ctrl+q quits.")

    def action_again(self) -> None:
        """Restart a lost worker, load what did not load; otherwise ask the last question again."""
        if self.client.status == "lost":
            self.client.restart()
        elif self.client.status == "off":
            self.client.load()
        else:
            self.main.action_follow()
            self.client.regenerate()

    def action_go_on(self) -> None:
        """Go on with an answer that was cut off, stopped, or met the length limit."""
        self.main.action_follow()
        self.client.go_on()

    def action_new(self) -> None:
        """A new conversation."""
        self.client.new_conversation()

    def action_calibrate(self) -> None:
        """Measure plain decoding."""
        self.client.calibrate()

    def action_save(self) -> None:
        """Save the conversation with its trees."""
        if not self.client.store.turns:
            self.notify("There is nothing to save yet.")
            return
        if (folder := self.client.save()) is not None:
            self.notify(f"Saved in {folder}", markup=False)

    def action_copy_answer(self) -> None:
        """Copy the last answer's source; of the turn on show while browsing."""
        if text := self._answer():
            copy(self, text)
            self.notify("Copied the answer.")
        else:
            self.notify("There is no answer to copy yet.")

    def action_copy_code(self) -> None:
        """Copy a code block's source; again for the next one."""
        blocks = code_blocks(self._answer())
        if not blocks:
            self.notify("The answer has no code block.")
            return
        self._copied = (self._copied + 1) % len(blocks)
        copy(self, blocks[self._copied])
        more = f" {self._copied + 1} of {len(blocks)}" if len(blocks) > 1 else ""
        self.notify(f"Copied code block{more}.")

    def _answer(self) -> str:
        store, at = self.client.store, self.main.view.at
        turn = store.turn if at is None else store.turn_of(at)
        return whole(store.turns, turn) if turn is not None else ""

    def save_settings(self) -> None:
        """Write what was changed here into the settings file."""
        try:
            path = save_changes(self._given, self.client.settings, self.settings_file)
        except DARTreeError as error:
            self.notify(str(error), severity="error", markup=False)
        else:
            self._given = self.client.settings
            self.notify(f"Saved in {path}", markup=False)

    def apply_ui(self, **changes: Any) -> None:
        """Change what can change at once: theme, drawing, shading.

        Raises:
            ConfigError: a value does not validate.
        """
        self.client.settings = self.client.settings.changed("ui", **changes)
        if "theme" in changes:
            self.theme = changes["theme"]
        if "tree" in changes and self.main.tree_kind != changes["tree"]:
            self.main.action_outline()
        self.main.refresh_all()

    def _watch_theme(self, theme_name: str) -> None:
        super()._watch_theme(theme_name)
        if self.themed and theme_name != self.client.settings.ui.theme:
            self.client.settings = self.client.settings.changed("ui", theme=theme_name)

    # Other screens

    def action_help(self) -> None:
        """Keys, glyphs, and what happens in a round."""
        from dartree_tui.screens.help import HelpScreen

        self._open(HelpScreen)

    def action_settings(self) -> None:
        """Settings, live."""
        from dartree_tui.screens.settings import SettingsScreen

        self._open(SettingsScreen)

    def action_models(self) -> None:
        """Choose and load models."""
        from dartree_tui.screens.models import ModelScreen

        self._open(ModelScreen)

    def action_compare(self) -> None:
        """The same prompt through two settings."""
        from dartree_tui.screens.compare import CompareScreen

        if not self.client.engine.live:
            self.client.tell(refusal("replay", "compare"))
            return
        self._open(CompareScreen)

    def action_find(self) -> None:
        """Find rounds by token, fate and acceptance."""
        from dartree_tui.screens.find import FindScreen

        self._open(FindScreen)

    def action_open(self) -> None:
        """Open a saved conversation."""
        from dartree_tui.screens.saved import SavedScreen

        self._open(SavedScreen)

    def action_system_prompt(self) -> None:
        """Edit the system prompt."""
        from dartree_tui.screens.dialogs import SystemPromptScreen

        self._open(SystemPromptScreen)

    def action_export(self) -> None:
        """Export the conversation as Markdown."""
        from dartree_tui.screens.dialogs import ExportScreen

        self._open(ExportScreen)

    def _open(self, screen: type[Screen[Any]]) -> None:
        """Open a screen, unless it is open already."""
        if not any(type(s) is screen for s in self.screen_stack):
            self.push_screen(screen())

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """The command palette."""
        yield from commands(self)

"""An app whose colours come from theme files, which may change while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from textual import work
from textual.app import App
from textual.css.errors import StylesheetError
from textual.css.tokenizer import TokenError
from textual.theme import Theme

from dartree_tui import themes
from dartree_tui.themes import DEFAULT_DARK, variable_defaults


class ThemedApp(App[None]):
    """Registers themes, takes over edited ones, and survives faulty ones.

    Attributes:
        themed: True once ours are registered; the user's choice counts from then on.
    """

    themed = False
    _drawable: Theme | None = None

    def warn(self, text: str) -> None:
        """Tell the user what is wrong with a theme."""

    def recoloured(self) -> None:
        """The colours of the theme in use have changed."""

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Colours of ours that a theme of Textual's own lacks."""
        return dict(variable_defaults(self.current_theme.dark if self.themed else True))

    def take_themes(self, wanted: str) -> None:
        """Register all themes, and use the wanted one if there is such."""
        found = themes.load_themes()
        for theme in found.themes:
            self.register_theme(theme)
        self.themed = True
        if wanted not in self.available_themes:
            self.warn(f"There is no theme {wanted!r}; using {DEFAULT_DARK}.")
            wanted = DEFAULT_DARK
        self.theme = wanted
        for problem in found.problems:
            self.warn(str(problem))

    @work(exclusive=True)
    async def watch_themes(self) -> None:
        """Take over theme files as they are edited, for as long as the app runs."""
        try:
            await self._watch_themes()
        except (OSError, RuntimeError) as error:  # no inotify watch left, for example
            self.warn(f"Edited themes are taken over at the next start alone: {error}")

    async def _watch_themes(self) -> None:
        async for found in themes.watch_themes():
            for theme in found.themes:
                self.register_theme(theme)
            for problem in found.problems:
                self.warn(str(problem))
            if self.theme in found.files:
                self.refresh_css(animate=False)
                self.theme_changed_signal.publish(self.current_theme)
                self.recoloured()

    def refresh_css(self, animate: bool = True) -> None:
        """Take the theme's colours; where style sheets refuse them, the last they took."""
        try:
            super().refresh_css(animate)
        except (StylesheetError, TokenError):
            before = self._drawable
            if before is None:
                raise
            fault = f"Theme {self.theme!r} has [variables] that cannot be used where they count."
            self.warn(f"{fault} The colours before it stay.")
            self.register_theme(before)
            self.theme = before.name
            super().refresh_css(animate)
        self._drawable = self.current_theme


def theme_names(app: App[Any]) -> Mapping[str, bool]:
    """Names of all themes, and whether they are dark; ours first."""
    own = set(themes.load_themes().files)
    names = sorted(app.available_themes, key=lambda name: (name not in own, name))
    return {name: app.available_themes[name].dark for name in names}

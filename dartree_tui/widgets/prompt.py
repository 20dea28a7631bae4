"""Where questions are typed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea

from dartree_tui.history import History
from dartree_tui.widgets.visible import typeable


@dataclass
class Asked(Message):
    """Enter was pressed on something.

    Attributes:
        prompt: The widget; it keeps its text until `sent` is called.
        text: What was typed, ends trimmed.
    """

    prompt: Prompt
    text: str


class Prompt(TextArea):
    """A growing input: enter sends, ctrl+j and alt+enter break the line.

    Up on the first line on screen and down on the last walk through history; what was being typed
    is waiting at its end, and edits of what is recalled stay until a question is sent.
    """

    DEFAULT_CSS = """
    Prompt {
        height: auto; min-height: 3; max-height: 8; padding: 0 1;
        border: round $panel; background: $background; scrollbar-size-vertical: 1;
    }
    Prompt:focus { border: round $primary; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "send", "send", id="prompt.send"),
        Binding("ctrl+j,alt+enter", "newline", "line break", id="prompt.newline"),
        Binding("up", "up", "earlier prompt", show=False, id="prompt.up"),
        Binding("down", "down", "later prompt", show=False, id="prompt.down"),
        Binding("alt+z", "undo", "undo", show=False, id="prompt.undo"),
        # A text area selects with these keys; here they do what they do everywhere else.
        Binding("f6", "screen.next_pane", "next pane", show=False, id="next-pane"),
        Binding("f7", "screen.step_mode", "step mode", show=False, id="step-mode"),
    ]

    def __init__(self, past: History, *, id: str | None = None) -> None:
        super().__init__(
            id=id,
            soft_wrap=True,
            show_line_numbers=False,
            tab_behavior="focus",
            highlight_cursor_line=False,
            placeholder="Ask something",
        )
        self.past = past

    async def _on_key(self, event: events.Key) -> None:
        # Bindings are looked up when a key has bubbled up to the app, and priority bindings before
        # it arrives here. Either way a fast typist's enter would overtake letters, or be overtaken.
        for node, bindings in self.screen._binding_chain:
            if node is not self:
                continue
            for binding in bindings.key_to_bindings.get(event.key, ()):
                if binding.action in ("send", "newline"):
                    event.stop()
                    event.prevent_default()
                    getattr(self, f"action_{binding.action}")()
                    return

    def _on_paste(self, event: events.Paste) -> None:  # type: ignore[override]
        # Runs before the text area's own handler, which would draw whatever steers the terminal.
        event.text = typeable(event.text)

    def action_send(self) -> None:
        """Post what was typed."""
        text = self.text.strip()
        if text:
            self.post_message(Asked(self, text))

    def sent(self, text: str) -> None:
        """A question was taken: remember it, and leave what has been typed since enter."""
        self.past.add(text)
        typed = self.text.lstrip()
        if typed.startswith(text):
            self._replace(typed.removeprefix(text).lstrip())

    def put_back(self, text: str) -> None:
        """A question came to nothing: offer it again, unless something new was typed."""
        if not self.text.strip():
            self._replace(text)

    def action_newline(self) -> None:
        """Break the line."""
        self.insert("\n")

    def action_up(self) -> None:
        """One line up, or one prompt back."""
        if not self.navigator.is_first_wrapped_line(self.cursor_location):
            self.action_cursor_up()
        elif (text := self.past.back(self.text)) is not None:
            self._replace(text)

    def action_down(self) -> None:
        """One line down, or one prompt on."""
        if not self.navigator.is_last_wrapped_line(self.cursor_location):
            self.action_cursor_down()
        elif (text := self.past.forward(self.text)) is not None:
            self._replace(text)

    def _replace(self, text: str) -> None:
        self.text = typeable(text)  # a history of an earlier version may hold anything
        self.move_cursor(self.document.end)

"""Help: what happens in a round, what the marks mean, and every key."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Markdown, Static

from dartree_tui.screens.keys import APP_BINDINGS, MAIN_BINDINGS
from dartree_tui.widgets.prompt import Prompt
from dartree_tui.widgets.timeline import Timeline
from dartree_tui.widgets.tree_view import TreeView

if TYPE_CHECKING:
    from dartree_tui.app import DartreeApp

TEXT = """\
### What happens in a round

1. **Draft.** The drafter guesses a whole block of tokens in one pass. Each slot is blind to what
   the others chose.
2. **Grow.** The correction head scores candidates along their own paths, depth by depth; the best
   of each depth go on.
3. **Prune.** The best nodes of the whole tree, at most the budget B, stay.
4. **Verify.** The target model scores all of them in one pass. Its own choices are followed from
   the root for as long as the tree holds them: that path is accepted, and the target's next
   choice comes on top as the bonus token.

The text is the target's own, token by token; speculation only makes it come faster.

### Marks

- `●` hit: accepted. `○` walked past: verified, but the target chose a sibling. `·` unreached:
  verified below such a node. `×` pruned: never verified. `◌` candidate: not judged yet.
  `+` bonus.
- Bars `▁`…`█` show the head's probability. The digit before them is the parent's row.
- τ, the acceptance length, counts the bonus token, as papers do.

### Why a tree can lack the bonus token

- *not proposed*: it was not among its parent's candidates.
- *level pruned*: a candidate that lost the selection at its depth.
- *final pruned*: in the tree, but dropped before verification.
- *not expanded*: its parent was never expanded.

### Pause and step

**space** freezes the view; the decoder goes on, and the next space catches up. **s** holds the
decoder itself, **n** lets it make one stage, **N** one round. When nothing decodes, the same keys
play and step through the rounds that were.
"""

_GROUPS = (
    ("everywhere", APP_BINDINGS),
    ("main screen, outside the prompt", MAIN_BINDINGS),
    ("prompt", Prompt.BINDINGS),
    ("tree", TreeView.BINDINGS),
    ("timeline", Timeline.BINDINGS),
)


def key_names(keys: str) -> str:
    """`left_square_bracket,f5` as `[, f5`."""
    names = {
        "left_square_bracket": "[",
        "right_square_bracket": "]",
        "left_curly_bracket": "{",
        "right_curly_bracket": "}",
        "question_mark": "?",
        "slash": "/",
    }
    return ", ".join(names.get(key.strip(), key.strip()) for key in keys.split(","))


class HelpScreen(ModalScreen[None]):
    """A page to read; escape closes it."""

    DEFAULT_CSS = """
    HelpScreen { align: center middle; background: $background 60%; }
    HelpScreen > VerticalScroll {
        width: 92; max-width: 100%; height: 90%; padding: 0 2; scrollbar-size-vertical: 1;
        background: $surface; border: round $primary; border-title-color: $foreground;
    }
    HelpScreen Markdown { background: transparent; padding: 0; margin: 0; }
    HelpScreen Static { height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,f1,question_mark", "dismiss", "close", id="help.close"),
        Binding("j,down", "scroll(1)", "down", show=False, id="help.down"),
        Binding("k,up", "scroll(-1)", "up", show=False, id="help.up"),
    ]

    app: DartreeApp

    def compose(self) -> ComposeResult:
        """The page."""
        page = VerticalScroll()
        page.border_title = "help   esc closes"
        with page:
            yield Markdown(TEXT, open_links=False)
            yield Static(self._keys())

    def on_mount(self) -> None:
        """Let the arrow keys scroll."""
        self.query_one(VerticalScroll).focus()

    def action_scroll(self, by: int) -> None:
        """Scroll some lines."""
        self.query_one(VerticalScroll).scroll_relative(y=by, animate=False)

    def _keys(self) -> Table:
        keymap = self.app.client.settings.keys
        table = Table.grid(padding=(0, 2))
        for title, bindings in _GROUPS:
            table.add_row("", "", "")
            table.add_row(Text(title, "bold"), "", Text("name in [keys]", "dim"))
            for binding in bindings:
                assert isinstance(binding, Binding)
                keys = keymap.get(binding.id or "", binding.key)
                what = binding.tooltip or binding.description
                table.add_row(key_names(keys), what, Text(binding.id or "", "dim"))
        return table

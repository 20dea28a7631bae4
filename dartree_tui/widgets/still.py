"""A text that grows, and the pane it scrolls in: arranged once a frame, not twice."""

from __future__ import annotations

from functools import lru_cache

from markdown_it import MarkdownIt
from textual.containers import Horizontal
from textual.geometry import Size
from textual.widget import Widget
from textual.widgets import Markdown, Static
from textual.widgets._markdown import MarkdownBlock


class Still(Widget):
    """A widget that asks for another arrangement only when it gets or loses a scroll bar.

    Textual's ask whenever their content changes its size, for the bars that they may need now;
    a widget as tall as its content needs none, and one that scrolls has its bar already.
    """

    def _size_updated(
        self, size: Size, virtual_size: Size, container_size: Size, layout: bool = True
    ) -> bool:
        return super()._size_updated(size, virtual_size, container_size, layout=False)


class StillText(Static, Still):
    """A piece of text."""


class StillLine(Horizontal, Still):
    """Widgets beside each other."""

    BLANK = True


class StillMarkdown(Markdown, Still):
    """A Markdown document whose blocks are still, too."""

    BLANK = True

    def __init__(self) -> None:
        super().__init__(open_links=False, parser_factory=_parser)

    def get_block_class(self, block_name: str) -> type[MarkdownBlock]:
        """The block's class, still."""
        return _still(super().get_block_class(block_name))


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    """Making a parser takes as long as a paragraph does, and every piece of an answer asks."""
    return MarkdownIt("gfm-like")


@lru_cache(maxsize=64)
def _still(block: type[MarkdownBlock]) -> type[MarkdownBlock]:
    return type(block.__name__, (block, Still), {"__doc__": block.__doc__})
